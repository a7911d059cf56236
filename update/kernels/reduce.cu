// Sums in a fixed order: the same bits in every run, whatever the scheduling of blocks.

#include "common.cuh"

// sums[c] += partials[0][c] + partials[1][c] + …; partials [rows, columns].
extern "C" __global__ void add_partials(float* sums, const float* partials, int rows, int columns) {
    int c = (int)global_index();
    if (c >= columns) return;
    float sum = 0.f;
    for (int r = 0; r < rows; r++) sum += partials[(u64)r * columns + c];
    sums[c] += sum;
}

// partials[b][c]: the sum of x[r][c] over the rows b, b + blocks, …; x [rows, columns], grid (column blocks, blocks).
extern "C" __global__ void column_partials(float* partials, const bf16* x, int rows, int columns) {
    int c = (int)global_index();
    if (c >= columns) return;
    float sum = 0.f;
    for (int r = blockIdx.y; r < rows; r += gridDim.y) sum += to_float(x[(u64)r * columns + c]);
    partials[(u64)blockIdx.y * columns + c] = sum;
}

// sums[b]: the sum of squares of a block's share of x. A value that is not finite makes the sum not finite.
extern "C" __global__ void square_sums(float* sums, const float* x, u64 length) {
    SHARED_ARRAY(float, scratch, 33);
    float sum = 0.f;
    for (u64 i = global_index(); i < length; i += global_size()) sum += x[i] * x[i];
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}
