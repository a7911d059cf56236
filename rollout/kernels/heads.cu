// Query, key and value heads of a product: bias (Qwen2), an RMS norm over each query and key head (Qwen3) and RoPE (arXiv
// 2104.09864) in one pass, rounded where training rounds; for our attention keys and values go straight into the KV cache.
//
// One warp a head of a row. A lane holds neighboring pairs (i, i + width / 2), two pairs at a time, so that both halves are read in
// full lines; a head has at most 256 values, which are two turns of a warp, a multiple of four.

#include "device.cuh"

#define TURNS 2
// Optional parts: a bias, norms, rotation.
#define BIAS 1
#define NORMS 2
#define ROPE 4

__device__ __forceinline__ float2 rounded_as(const float*, float2 v) { return v; }

// qkv and bias [rows or 1, (heads + 2 * kv_heads) * width]: query heads, key heads, value heads; query [rows, heads * width], key and
// value [rows, kv_heads * width], or with slots [rows] the KV cache, where a row's are stored at its slot, and nowhere if that is
// negative; norms [width]; cosines and sines [positions, width / 2]; positions [rows].
template <typename T>
__device__ __forceinline__ void split_heads(T* query, T* key, T* value, const T* qkv, const T* bias, const T* query_norm,
                                            const T* key_norm, const float* cosines, const float* sines, const int* positions,
                                            const int* slots, int rows, int heads, int kv_heads, int width, float epsilon, int has) {
  int lane = threadIdx.x & 31, half = width / 2, parts = heads + 2 * kv_heads;
  u64 task = ((u64)blockIdx.x * blockDim.x + threadIdx.x) >> 5;
  int row = (int)(task / parts), head = (int)(task % parts);
  if (row >= rows) return;
  const T* from = qkv + ((u64)row * parts + head) * width;
  float2 first[TURNS], second[TURNS];
  float squares = 0.f;
  for (int t = 0; t < TURNS; t++) {
    int i = t * 64 + lane * 2;
    first[t] = second[t] = make_float2(0.f, 0.f);
    if (i >= half) continue;
    first[t] = load2(from + i);
    second[t] = load2(from + half + i);
    if (has & BIAS) {
      float2 a = load2(bias + head * width + i), b = load2(bias + head * width + half + i);
      first[t] = rounded_as(from, make_float2(first[t].x + a.x, first[t].y + a.y));
      second[t] = rounded_as(from, make_float2(second[t].x + b.x, second[t].y + b.y));
    }
    squares += first[t].x * first[t].x + first[t].y * first[t].y;
    squares += second[t].x * second[t].x + second[t].y * second[t].y;
  }
  bool is_query = head < heads, is_value = head >= heads + kv_heads;
  int place = slots ? slots[row] : row;
  if (place < 0 && !is_query) return;
  T* to = is_query ? query + ((u64)row * heads + head) * width
                   : (is_value ? value + ((u64)place * kv_heads + head - heads - kv_heads) * width
                               : key + ((u64)place * kv_heads + head - heads) * width);
  bool norms = (has & NORMS) && !is_value, rope = (has & ROPE) && !is_value;
  const T* norm = is_query ? query_norm : key_norm;
  float scale = norms ? rsqrtf(warp_sum(squares) / width + epsilon) : 1.f;
  u64 angle = rope ? (u64)positions[row] * half : 0;
  for (int t = 0; t < TURNS; t++) {
    int i = t * 64 + lane * 2;
    if (i >= half) continue;
    float2 a = first[t], b = second[t];
    if (norms) {
      float2 n = load2(norm + i), m = load2(norm + half + i);
      a = make_float2(a.x * scale * n.x, a.y * scale * n.y);
      b = make_float2(b.x * scale * m.x, b.y * scale * m.y);
    }
    if (rope) {
      float2 c = load2(cosines + angle + i), s = load2(sines + angle + i);
      store2(to + i, a.x * c.x - b.x * s.x, a.y * c.y - b.y * s.y);
      store2(to + half + i, b.x * c.x + a.x * s.x, b.y * c.y + a.y * s.y);
    } else {
      store2(to + i, a.x, a.y);
      store2(to + half + i, b.x, b.y);
    }
  }
}

extern "C" __global__ void __launch_bounds__(256)
    split_heads_bf16(bf16* query, bf16* key, bf16* value, const bf16* qkv, const bf16* bias, const bf16* query_norm,
                     const bf16* key_norm, const float* cosines, const float* sines, const int* positions, int rows, int heads,
                     int kv_heads, int width, float epsilon, int has) {
  split_heads(query, key, value, qkv, bias, query_norm, key_norm, cosines, sines, positions, nullptr, rows, heads, kv_heads, width,
              epsilon, has);
}

extern "C" __global__ void __launch_bounds__(256)
    split_heads_f16(f16* query, f16* key, f16* value, const f16* qkv, const f16* bias, const f16* query_norm,
                     const f16* key_norm, const float* cosines, const float* sines, const int* positions, int rows, int heads,
                     int kv_heads, int width, float epsilon, int has) {
  split_heads(query, key, value, qkv, bias, query_norm, key_norm, cosines, sines, positions, nullptr, rows, heads, kv_heads, width,
              epsilon, has);
}

extern "C" __global__ void __launch_bounds__(256)
    split_heads_f32(float* query, float* key, float* value, const float* qkv, const float* bias, const float* query_norm,
                    const float* key_norm, const float* cosines, const float* sines, const int* positions, int rows, int heads,
                    int kv_heads, int width, float epsilon, int has) {
  split_heads(query, key, value, qkv, bias, query_norm, key_norm, cosines, sines, positions, nullptr, rows, heads, kv_heads, width,
              epsilon, has);
}

extern "C" __global__ void __launch_bounds__(256)
    append_heads_bf16(bf16* query, bf16* keys, bf16* values, const bf16* qkv, const bf16* bias, const bf16* query_norm,
                      const bf16* key_norm, const float* cosines, const float* sines, const int* positions, const int* slots,
                      int rows, int heads, int kv_heads, int width, float epsilon, int has) {
  split_heads(query, keys, values, qkv, bias, query_norm, key_norm, cosines, sines, positions, slots, rows, heads, kv_heads, width,
              epsilon, has);
}

extern "C" __global__ void __launch_bounds__(256)
    append_heads_f16(f16* query, f16* keys, f16* values, const f16* qkv, const f16* bias, const f16* query_norm,
                     const f16* key_norm, const float* cosines, const float* sines, const int* positions, const int* slots,
                     int rows, int heads, int kv_heads, int width, float epsilon, int has) {
  split_heads(query, keys, values, qkv, bias, query_norm, key_norm, cosines, sines, positions, slots, rows, heads, kv_heads, width,
              epsilon, has);
}

extern "C" __global__ void __launch_bounds__(256)
    append_heads_f32(float* query, float* keys, float* values, const float* qkv, const float* bias, const float* query_norm,
                     const float* key_norm, const float* cosines, const float* sines, const int* positions, const int* slots,
                     int rows, int heads, int kv_heads, int width, float epsilon, int has) {
  split_heads(query, keys, values, qkv, bias, query_norm, key_norm, cosines, sines, positions, slots, rows, heads, kv_heads, width,
              epsilon, has);
}
