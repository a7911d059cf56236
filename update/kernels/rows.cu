// Rows of loss: picked out of all rows of a micro-batch, and put back.

#include "common.cuh"

// out[r] = x[nodes[r]] over rows of `width` values, an even number. One block a row.
extern "C" __global__ void gather_rows(bf16* out, const bf16* x, const int* nodes, int width) {
    const u32* from = (const u32*)(x + (u64)nodes[blockIdx.x] * width);
    u32* to = (u32*)(out + (u64)blockIdx.x * width);
    for (int i = threadIdx.x; i < width / 2; i += blockDim.x) to[i] = from[i];
}

// x[nodes[r]] += rows[r]; no node occurs twice, so no two blocks meet. One block a row.
extern "C" __global__ void scatter_add_rows(bf16* x, const bf16* rows, const int* nodes, int width) {
    const bf16* from = rows + (u64)blockIdx.x * width;
    bf16* to = x + (u64)nodes[blockIdx.x] * width;
    for (int i = threadIdx.x * 2; i < width; i += blockDim.x * 2) {
        float2 a = load2(to + i), b = load2(from + i);
        store2(to + i, a.x + b.x, a.y + b.y);
    }
}
