// What stands between a decoder's products: RMS norms of the f32 residual stream, and SwiGLU. Arithmetic is f32 and rounded once,
// as in training; the activations are bf16 or f16, or f32 for tests.

#include "device.cuh"

__device__ __forceinline__ float to_float(float value) { return value; }
__device__ __forceinline__ void put(bf16* to, float value) { *to = to_bf16(value); }
__device__ __forceinline__ void put(f16* to, float value) { *to = to_f16(value); }
__device__ __forceinline__ void put(float* to, float value) { *to = value; }

// out = x / sqrt(mean(x^2) + epsilon) * weight for each row of `width` values (arXiv 1910.07467). A block a row. Rows whose width
// is a multiple of four are read four values at a time.
template <typename T>
__device__ __forceinline__ void norm_row(T* out, const float* x, const T* weight, int width, float epsilon, float* scratch) {
  const float* row = x + (u64)blockIdx.x * width;
  T* to = out + (u64)blockIdx.x * width;
  bool fours = width % 4 == 0;
  float squares = 0.f;
  if (fours) {
    for (int i = threadIdx.x * 4; i < width; i += blockDim.x * 4) {
      float4 v = load4(row + i);
      squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    }
  } else {
    for (int i = threadIdx.x; i < width; i += blockDim.x) squares += row[i] * row[i];
  }
  float scale = rsqrtf(block_sum(squares, scratch) / width + epsilon);
  if (fours) {
    for (int i = threadIdx.x * 4; i < width; i += blockDim.x * 4) {
      float4 v = load4(row + i), w = load4(weight + i);
      store4(to + i, make_float4(v.x * scale * w.x, v.y * scale * w.y, v.z * scale * w.z, v.w * scale * w.w));
    }
  } else {
    for (int i = threadIdx.x; i < width; i += blockDim.x) put(to + i, row[i] * scale * to_float(weight[i]));
  }
}

extern "C" __global__ void norm_rows_bf16(bf16* out, const float* x, const bf16* weight, int width, float epsilon) {
  SHARED_ARRAY(float, scratch, 33);
  norm_row(out, x, weight, width, epsilon, scratch);
}

extern "C" __global__ void norm_rows_f16(f16* out, const float* x, const f16* weight, int width, float epsilon) {
  SHARED_ARRAY(float, scratch, 33);
  norm_row(out, x, weight, width, epsilon, scratch);
}

extern "C" __global__ void norm_rows_f32(float* out, const float* x, const float* weight, int width, float epsilon) {
  SHARED_ARRAY(float, scratch, 33);
  norm_row(out, x, weight, width, epsilon, scratch);
}

__device__ __forceinline__ float gated(float gate, float up) {
  float s = 1.f / (1.f + expf(-gate));
  return gate * s * up;
}

// out = silu(gate) * up (arXiv 2002.05202); gate_up [rows, 2 * width], the gate's half first, out [rows, width]. Grid (parts of a
// row, rows); eight values a thread where the width is a multiple of eight, else one.
template <typename T> __device__ __forceinline__ void glu_row(T* out, const T* gate_up, int width) {
  const T *gate = gate_up + (u64)blockIdx.y * 2 * width, *up = gate + width;
  T* to = out + (u64)blockIdx.y * width;
  int index = blockIdx.x * blockDim.x + threadIdx.x, threads = gridDim.x * blockDim.x;
  if (width % 8) {
    for (int i = index; i < width; i += threads) put(to + i, gated(to_float(gate[i]), to_float(up[i])));
    return;
  }
  for (int i = index * 8; i < width; i += threads * 8) {
    float4 g[2], u[2], o[2];
    load8(gate + i, g);
    load8(up + i, u);
    for (int h = 0; h < 2; h++)
      o[h] = make_float4(gated(g[h].x, u[h].x), gated(g[h].y, u[h].y), gated(g[h].z, u[h].z), gated(g[h].w, u[h].w));
    store8(to + i, o);
  }
}

extern "C" __global__ void glu_rows_bf16(bf16* out, const bf16* gate_up, int width) { glu_row(out, gate_up, width); }

extern "C" __global__ void glu_rows_f16(f16* out, const f16* gate_up, int width) { glu_row(out, gate_up, width); }

extern "C" __global__ void glu_rows_f32(float* out, const float* gate_up, int width) { glu_row(out, gate_up, width); }

// The sums of a warp's output column for each of `count` rows of x, of which lane r keeps that of row r. Eight values a lane and
// step: the order of the sum depends on the width alone.
template <typename T, int count>
__device__ __forceinline__ float column_sums(const T* x, const T* weight, int inputs, int lane) {
  float sums[count];
  for (int r = 0; r < count; r++) sums[r] = 0.f;
#pragma unroll 4
  for (int i = lane * 8; i < inputs; i += 32 * 8) {
    float4 w[2];
    load8(weight + i, w);
    for (int r = 0; r < count; r++) {
      float4 v[2];
      load8(x + (u64)r * inputs + i, v);
      for (int h = 0; h < 2; h++) sums[r] += v[h].x * w[h].x + v[h].y * w[h].y + v[h].z * w[h].z + v[h].w * w[h].w;
    }
  }
  float own = 0.f;
  for (int r = 0; r < count; r++) {
    float sum = warp_sum(sums[r]);
    if (lane == r) own = sum;
  }
  return own;
}

// out = addend + x * weight^T for up to four rows, in f32 and rounded once: the weights are read once, and that is all that takes
// time. x [rows, inputs], weight [outputs, inputs], out and addend [rows, outputs]; `adds` 0: no addend. `inputs` is a multiple of
// eight. A warp a column.
template <typename T, typename O>
__device__ __forceinline__ void few_rows(O* out, const T* x, const T* weight, const O* addend, int rows, int inputs,
                                         int outputs, int adds) {
  int lane = threadIdx.x & 31, column = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
  if (column >= outputs) return;
  const T* own = weight + (u64)column * inputs;
  float sum;
  switch (rows) {
    case 1: sum = column_sums<T, 1>(x, own, inputs, lane); break;
    case 2: sum = column_sums<T, 2>(x, own, inputs, lane); break;
    case 3: sum = column_sums<T, 3>(x, own, inputs, lane); break;
    default: sum = column_sums<T, 4>(x, own, inputs, lane); break;
  }
  if (lane >= rows) return;
  u64 at = (u64)lane * outputs + column;
  put(out + at, adds ? to_float(addend[at]) + sum : sum);
}

extern "C" __global__ void __launch_bounds__(128)
    few_rows_bf16(bf16* out, const bf16* x, const bf16* weight, const bf16* addend, int rows, int inputs, int outputs, int adds) {
  few_rows(out, x, weight, addend, rows, inputs, outputs, adds);
}

extern "C" __global__ void __launch_bounds__(128)
    few_rows_stream(float* out, const bf16* x, const bf16* weight, const float* addend, int rows, int inputs, int outputs, int adds) {
  few_rows(out, x, weight, addend, rows, inputs, outputs, adds);
}

extern "C" __global__ void __launch_bounds__(128)
    few_rows_f16(f16* out, const f16* x, const f16* weight, const f16* addend, int rows, int inputs, int outputs, int adds) {
  few_rows(out, x, weight, addend, rows, inputs, outputs, adds);
}

extern "C" __global__ void __launch_bounds__(128)
    few_rows_stream_f16(float* out, const f16* x, const f16* weight, const float* addend, int rows, int inputs, int outputs, int adds) {
  few_rows(out, x, weight, addend, rows, inputs, outputs, adds);
}
