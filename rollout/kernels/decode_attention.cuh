// Attention of decoding over a KV cache in blocks: every row is the newest token of a sequence.
//
// The keys of a row are cut into chunks by their absolute position, one for each block of the cache. A chunk gives a row a
// partial result: the largest score, and the sums of weights and of weighted values relative to it. They are merged in a fixed
// order. So the bits of a row depend on its query, keys and values alone. Rows that share a block are served by one CUDA block,
// which reads keys and values once for all of them.
//
// decode_attention: a task is a cache block and the neighboring rows that read it. A CUDA block takes a key head of a task at a
// time, with up to 16 pairs of a row and a query head: the rows of a tensor core's product. Its four warps divide the keys for
// the scores, and the columns for the values. It copies the keys of the next task while it uses the values of this one.

#pragma once

#include "device.cuh"

#define WARPS 4
#define THREADS (32 * WARPS)
// Rows of a product, and keys that a warp scores at a time.
#define TILE 16
// Most keys of a chunk.
#define MOST_KEYS 256
#define LOG2_E 1.44269504f
#define MASKED (-1e30f)

// A value of a tile in shared memory with rows of D values. Pieces of 16 bytes change places by row, so that eight rows lie in
// different banks.
template <int D, typename T> __device__ __forceinline__ T* at(T* tile, int row, int column) {
  constexpr int PIECE = 16 / sizeof(T);
  return tile + row * D + ((column / PIECE) ^ (row & 7)) * PIECE + column % PIECE;
}

__device__ __forceinline__ int pair_of_lane() { return (threadIdx.x & 3) * 2; }
__device__ __forceinline__ int row_of_lane() { return (threadIdx.x & 31) >> 2; }

// s += the 16 rows of q times 16 keys from `key` on, in the layout of mma: s[n][e] belongs to row row_of_lane() + 8 * (e >> 1) and key
// 8 * n + pair_of_lane() + (e & 1).
template <int D> __device__ __forceinline__ void score(float (&s)[2][4], scalar_t* q, scalar_t* keys, int key, int, const int*) {
  int lane = threadIdx.x & 31;
#pragma unroll
  for (int c = 0; c < D; c += 16) {
    u32 a[4], b[4];
    ldmatrix_x4(a, at<D>(q, lane & 15, c + (lane >> 4) * 8));
    ldmatrix_x4(b, at<D>(keys, key + (lane & 7) + (lane >> 4) * 8, c + ((lane >> 3) & 1) * 8));
    mma_m16n8k16(s[0], a, b[0], b[1]);
    mma_m16n8k16(s[1], a, b[2], b[3]);
  }
}

// In f32, which is for tests, keys that a row does not see are left out: they are masked.
template <int D>
__device__ __forceinline__ void score(float (&s)[2][4], float* q, float* keys, int key, int width, const int* visible) {
  for (int n = 0; n < 2; n++)
    for (int e = 0; e < 4; e++) {
      int row = row_of_lane() + (e >> 1) * 8, own = key + n * 8 + pair_of_lane() + (e & 1);
      for (int c = 0; c < width && own < visible[e >> 1]; c += 4) {
        float4 a = load4(at<D>(q, row, c)), b = load4(at<D>(keys, own, c));
        s[n][e] += a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
      }
    }
}

// sums += the weights of 16 keys from `key` on, [16, stride], times COLUMNS columns of their values from `first` on.
template <int D, int COLUMNS>
__device__ __forceinline__ void add_values(float (&sums)[COLUMNS / 8][4], scalar_t* weights, int stride, scalar_t* values, int key, int first) {
  int lane = threadIdx.x & 31;
  u32 a[4];
  ldmatrix_x4(a, weights + (lane & 15) * stride + key + (lane >> 4) * 8);
#pragma unroll
  for (int n = 0; n < COLUMNS / 8; n += 2) {
    u32 b[4];
    ldmatrix_x4_transposed(b, at<D>(values, key + (lane & 15), first + n * 8 + (lane >> 4) * 8));
    mma_m16n8k16(sums[n], a, b[0], b[1]);
    mma_m16n8k16(sums[n + 1], a, b[2], b[3]);
  }
}

template <int D, int COLUMNS>
__device__ __forceinline__ void add_values(float (&sums)[COLUMNS / 8][4], float* weights, int stride, float* values, int key, int first) {
  for (int k = key; k < key + TILE; k++)
    for (int e = 0; e < 4; e++) {
      float weight = weights[(row_of_lane() + (e >> 1) * 8) * stride + k];
      if (weight == 0.f) continue;
      for (int n = 0; n < COLUMNS / 8; n++) sums[n][e] += weight * *at<D>(values, k, first + n * 8 + pair_of_lane() + (e & 1));
    }
}

// A key head of a task.
struct Item {
  int index, block, first, rows, chunk, valid, head;
};

// partials: for each of `end_row - first_row` rows, `heads` query heads and `chunks` chunks the `width` weighted values, and after all
// of them the largest score, times log2(e), and the sum of weights. queries [rows, heads * width]; keys and values [blocks, size,
// kv_heads, width]; tasks [*count, 4]: cache block, first row plus 65536 times the number of rows, chunk, keys to read; positions
// [rows]. `width` is a multiple of 8 up to D, `size` one of 16 up to MOST_KEYS. A grid of any size, THREADS threads.
template <typename T, int D>
__device__ __forceinline__ void decode_attention(float* partials, const T* queries, const T* keys, const T* values, const int* tasks,
                                                 const int* count, const int* positions, int heads, int kv_heads, int width, int size,
                                                 int chunks, int first_row, int end_row, float scale) {
  constexpr int PIECE = 16 / sizeof(T), PIECES = D / PIECE, COLUMNS = D / WARPS;
  DYNAMIC_SHARED(T, shared);
  int stride = size + 8, share = heads / kv_heads;
  T *tile_k = shared, *tile_v = tile_k + size * D, *tile_q = tile_v + size * D, *weights = tile_q + TILE * D;
  float *tops = (float*)(weights + TILE * stride), *totals = tops + WARPS * TILE;
  int warp = threadIdx.x >> 5, row = row_of_lane(), pair = pair_of_lane();
  int items = *count * kv_heads;
  float scale2 = scale * LOG2_E;
  float* stats = partials + (u64)(end_row - first_row) * heads * chunks * width;

  auto find = [&](int index) {
    Item item = {index, 0, 0, 0, 0, 0, 0};
    for (; item.index < items; item.index += gridDim.x) {
      int4 task = ((const int4*)tasks)[item.index / kv_heads];
      int first = task.y & 0xffff, last = min(first + (task.y >> 16), end_row);
      item.first = max(first, first_row);
      item.rows = last - item.first;
      item.block = task.x, item.chunk = task.z, item.valid = task.w, item.head = item.index % kv_heads;
      if (item.rows > 0) break;
    }
    return item;
  };
  auto copy_block = [&](T* to, const T* cache, const Item& item) {
    const T* from = cache + ((i64)item.block * size * kv_heads + item.head) * width;
#pragma unroll 4
    for (int i = threadIdx.x; i < size * PIECES; i += THREADS) {
      int key = i / PIECES, column = i % PIECES * PIECE;
      copy_async_16(at<D>(to, key, column), from + (i64)key * kv_heads * width + column, key < item.valid && column < width);
    }
  };
  auto copy_queries = [&](const Item& item, int tile) {
    for (int i = threadIdx.x; i < TILE * PIECES; i += THREADS) {
      int own = i / PIECES, column = i % PIECES * PIECE, query = tile * TILE + own;
      bool there = query < item.rows * share;
      int of = there ? query : 0;
      const T* from = queries + ((i64)(item.first + of / share) * heads + item.head * share + of % share) * width + column;
      copy_async_16(at<D>(tile_q, own, column), from, there && column < width);
    }
  };

  Item now = find(blockIdx.x);
  if (now.index >= items) return;
  copy_queries(now, 0);
  copy_block(tile_k, keys, now);
  copy_async_commit();
  copy_block(tile_v, values, now);
  copy_async_commit();
  for (int tile = 0;;) {
    bool ends = (tile + 1) * TILE >= now.rows * share;
    Item next = ends ? find(now.index + gridDim.x) : now;
    bool more = next.index < items;
    int pairs[2], visible[2];
    for (int r = 0; r < 2; r++) {
      pairs[r] = tile * TILE + row + r * 8;
      bool there = pairs[r] < now.rows * share;
      visible[r] = there ? positions[now.first + pairs[r] / share] + 1 - now.chunk * size : 0;
    }
    copy_async_wait<1>();
    __syncthreads();

    float s[MOST_KEYS / TILE / WARPS][2][4], top[2] = {MASKED, MASKED};
#pragma unroll
    for (int turn = 0; turn < MOST_KEYS / TILE / WARPS; turn++) {
      int key = (turn * WARPS + warp) * TILE;
      if (key >= size) continue;
      for (int n = 0; n < 2; n++)
        for (int e = 0; e < 4; e++) s[turn][n][e] = 0.f;
      score<D>(s[turn], tile_q, tile_k, key, width, visible);
      for (int n = 0; n < 2; n++)
        for (int e = 0; e < 4; e++) {
          if (key + n * 8 + pair + (e & 1) >= visible[e >> 1]) s[turn][n][e] = MASKED;
          top[e >> 1] = fmaxf(top[e >> 1], s[turn][n][e]);
        }
    }
    for (int r = 0; r < 2; r++) {
      top[r] = fmaxf(top[r], __shfl_xor_sync(FULL_WARP, top[r], 1));
      top[r] = fmaxf(top[r], __shfl_xor_sync(FULL_WARP, top[r], 2));
      if (pair == 0) tops[warp * TILE + row + r * 8] = top[r];
    }
    __syncthreads();
    // Nobody reads these queries any more, nor, after the last tile, these keys.
    if (more) {
      copy_queries(next, ends ? 0 : tile + 1);
      if (ends) copy_block(tile_k, keys, next);
    }
    copy_async_commit();

    float total[2] = {0.f, 0.f};
    for (int r = 0; r < 2; r++) {
      for (int w = 0; w < WARPS; w++) top[r] = fmaxf(top[r], tops[w * TILE + row + r * 8]);
      // A row that is not there has no weights.
      if (visible[r] <= 0) top[r] = -MASKED;
    }
#pragma unroll
    for (int turn = 0; turn < MOST_KEYS / TILE / WARPS; turn++) {
      int key = (turn * WARPS + warp) * TILE;
      if (key >= size) continue;
      for (int n = 0; n < 2; n++)
        for (int r = 0; r < 2; r++) {
          float one = exp2_approximate((s[turn][n][2 * r] - top[r]) * scale2);
          float other = exp2_approximate((s[turn][n][2 * r + 1] - top[r]) * scale2);
          total[r] += one + other;
          store2(weights + (row + r * 8) * stride + key + n * 8 + pair, one, other);
        }
    }
    for (int r = 0; r < 2; r++) {
      total[r] += __shfl_xor_sync(FULL_WARP, total[r], 1);
      total[r] += __shfl_xor_sync(FULL_WARP, total[r], 2);
      if (pair == 0) totals[warp * TILE + row + r * 8] = total[r];
    }
    copy_async_wait<1>();
    __syncthreads();

    float sums[COLUMNS / 8][4];
    for (int n = 0; n < COLUMNS / 8; n++)
      for (int e = 0; e < 4; e++) sums[n][e] = 0.f;
    for (int key = 0; key < size; key += TILE) add_values<D, COLUMNS>(sums, weights, stride, tile_v, key, warp * COLUMNS);
    for (int r = 0; r < 2; r++) {
      if (pairs[r] >= now.rows * share) continue;
      u64 query = (u64)(now.first - first_row + pairs[r] / share) * heads + now.head * share + pairs[r] % share;
      u64 place = query * chunks + now.chunk;
      if (warp == 0 && pair == 0) {
        float sum = 0.f;
        for (int w = 0; w < WARPS; w++) sum += totals[w * TILE + row + r * 8];
        store2(stats + 2 * place, top[r] * scale2, sum);
      }
      for (int n = 0; n < COLUMNS / 8; n++) {
        int column = warp * COLUMNS + n * 8 + pair;
        if (column < width) store2(partials + place * width + column, sums[n][2 * r], sums[n][2 * r + 1]);
      }
    }
    __syncthreads();
    if (more && ends) copy_block(tile_v, values, next);
    copy_async_commit();
    if (!more) break;
    tile = ends ? 0 : tile + 1;
    now = next;
  }
  copy_async_wait<0>();
}

// out [rows, heads * width] from decode_attention's `partials`, which begin at `first_row`. A
// block of THREADS threads for each query head of each of `rows` rows. Each warp adds every fourth chunk, and the four sums are
// added in order.
template <typename T>
__device__ __forceinline__ void merge_chunks(T* out, const float* partials, const int* positions, int heads, int width, int size,
                                             int chunks, int first_row, int rows) {
  SHARED_ARRAY(float, sums, WARPS * 128);
  SHARED_ARRAY(float, totals, WARPS);
  int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  int row = blockIdx.x / heads, last = positions[first_row + row] / size;
  const float* own = partials + (u64)blockIdx.x * chunks * width;
  const float* stats = partials + (u64)rows * heads * chunks * width + (u64)blockIdx.x * chunks * 2;
  float top = MASKED;
  for (int chunk = lane; chunk <= last; chunk += 32) top = fmaxf(top, stats[2 * chunk]);
  top = warp_max(top);
  float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
  float total = 0.f;
#pragma unroll 4
  for (int chunk = warp; chunk <= last; chunk += WARPS) {
    float2 stat = load2(stats + 2 * chunk);
    float weight = exp2_approximate(stat.x - top);
    total += weight * stat.y;
    if (lane * 4 >= width) continue;
    float4 v = load4(own + (u64)chunk * width + lane * 4);
    sum = make_float4(sum.x + weight * v.x, sum.y + weight * v.y, sum.z + weight * v.z, sum.w + weight * v.w);
  }
  store4(sums + warp * 128 + lane * 4, sum);
  if (lane == 0) totals[warp] = total;
  __syncthreads();
  int column = threadIdx.x * 2;
  if (column >= width) return;
  float2 all = make_float2(0.f, 0.f);
  float weights = 0.f;
  for (int w = 0; w < WARPS; w++) {
    float2 part = load2(sums + w * 128 + column);
    all = make_float2(all.x + part.x, all.y + part.y);
    weights += totals[w];
  }
  store2(out + ((u64)first_row * heads + blockIdx.x) * width + column, all.x / weights, all.y / weights);
}
