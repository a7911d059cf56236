// Sums in a fixed order: the same bits in every run, whatever the scheduling of blocks.

#include "common.cuh"

#define WARPS 8
// SQUARES of memory.rs.
#define SQUARES 4096

// sums[c] += the sum of partials[r][c]; partials [rows, columns]. A block has 32 columns, a lane each. Its WARPS warps share the
// rows, so that a few columns have many loads under way.
extern "C" __global__ void add_partials(float* sums, const float* partials, int rows, int columns) {
    SHARED_ARRAY(float, parts, WARPS * 32);
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, c = blockIdx.x * 32 + lane;
    float sum = 0.f;
    if (c >= columns) rows = 0;
#pragma unroll 8
    for (int r = warp; r < rows; r += WARPS) sum += partials[(u64)r * columns + c];
    parts[threadIdx.x] = sum;
    __syncthreads();
    if (warp > 0 || c >= columns) return;
    for (int w = 1; w < WARPS; w++) sum += parts[w * 32 + lane];
    sums[c] += sum;
}

// partials[b][c]: the sum of x[r][c] over the rows b, b + blocks, …; x [rows, columns], grid (column blocks, blocks).
extern "C" __global__ void column_partials(float* partials, const scalar_t* x, int rows, int columns) {
    int c = (int)global_index();
    if (c >= columns) return;
    float sum = 0.f;
    for (int r = blockIdx.y; r < rows; r += gridDim.y) sum += to_float(x[(u64)r * columns + c]);
    partials[(u64)blockIdx.y * columns + c] = sum;
}

// sums[b]: the sum of squares of piece b of x, SQUARES values. A value that is not finite makes the sum not finite.
extern "C" __global__ void square_sums(float* sums, const float* x, u64 length) {
    SHARED_ARRAY(float, scratch, 33);
    u64 from = (u64)blockIdx.x * SQUARES, to = min(from + SQUARES, length);
    float sum = 0.f;
    for (u64 i = from + threadIdx.x; i < to; i += blockDim.x) sum += x[i] * x[i];
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}
