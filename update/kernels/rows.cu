// Rows of loss: picked out of all rows of a micro-batch, and put back.

#include "common.cuh"

// out[r] = x[nodes[r]] over rows of `bytes4` 32-bit words, whatever they hold. One block a row.
extern "C" __global__ void gather_rows(u32* out, const u32* x, const u32* nodes, int words) {
    const u32* from = x + (u64)nodes[blockIdx.x] * words;
    u32* to = out + (u64)blockIdx.x * words;
    for (int i = threadIdx.x; i < words; i += blockDim.x) to[i] = from[i];
}

// x[nodes[r]] += rows[r]; no node occurs twice, so no two blocks meet. One block a row.
extern "C" __global__ void scatter_add_rows(bf16* x, const bf16* rows, const u32* nodes, int width) {
    const bf16* from = rows + (u64)blockIdx.x * width;
    bf16* to = x + (u64)nodes[blockIdx.x] * width;
    for (int i = threadIdx.x; i < width; i += blockDim.x) to[i] = to_bf16(to_float(to[i]) + to_float(from[i]));
}
