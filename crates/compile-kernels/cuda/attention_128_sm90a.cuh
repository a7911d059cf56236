// Shared by Hopper's attention kernels, for heads of 128: tiles for wgmma.
//
// The products follow FlashAttention-3 (arXiv 2407.08608): two warpgroups with 64 rows each. Copies are plain
// cp.async by all threads, and the next tiles are loaded while the current ones are used. Left out: warps
// that only copy.
#pragma once

#include "attention_tiles.cuh"
#include "wgmma.cuh"

#define WIDTH 128
#define THREADS 256

// Starts copying COUNT rows of one head to a tile; zeros for rows beyond `rows`, which are never read.
template <int COUNT> __device__ __forceinline__ void copy_rows(scalar_t* to, const scalar_t* from, int first, int rows, int stride) {
    constexpr int PIECES = WIDTH / 8, STEP = THREADS / PIECES;
    int row = threadIdx.x / PIECES, column = threadIdx.x % PIECES * 8;
    to = swizzled<COUNT>(to, row, column);
    from += (i64)(first + row) * stride + column;
#pragma unroll
    for (int turn = 0; turn < COUNT; turn += STEP)
        copy_async_16(to + turn * 64, from + (i64)turn * stride, first + row + turn < rows);
}

// Starts copying COUNT values.
template <int COUNT, class T> __device__ __forceinline__ void copy_values(T* to, const T* from, int first, int count, int stride) {
    int i = threadIdx.x;
    if (i < COUNT) copy_async_4(to + i, from + (i64)(first + i) * stride, first + i < count);
}

// Ends the copies that were started, and the use of what the next ones overwrite: between two of these a tile is whole.
__device__ __forceinline__ void wait_for_tiles() {
    copy_async_wait<0>();
    fence_proxy_async();
    __syncthreads();
}

// A warpgroup's accumulators, rounded, as the left operand of its next products.
template <int N> __device__ __forceinline__ void to_operand(u32 (&a)[N / 8][4], const float (&sums)[N]) {
#pragma unroll
    for (int c = 0; c < N / 8; c++)
        for (int i = 0; i < 4; i++) a[c][i] = pack_scalars(sums[8 * c + 2 * i], sums[8 * c + 2 * i + 1]);
}

// d = 64 rows of `a` from `row` on times the rows of b; b has 2 N rows.
template <int ROWS, int N> __device__ __forceinline__ void gemm_ss(float (&d)[N], const scalar_t* a, int row, const scalar_t* b) {
#pragma unroll
    for (int step = 0; step < WIDTH / 16; step++)
        wgmma_ss(d, k_major<ROWS>(a, row, step), k_major<2 * N>(b, 0, step), step > 0);
}

// d += a b, where b has a row for each of a's columns.
template <int COUNT> __device__ __forceinline__ void gemm_rs(float (&d)[64], const u32 (&a)[COUNT][4], const scalar_t* b) {
#pragma unroll
    for (int c = 0; c < COUNT; c++) wgmma_rs(d, a[c], mn_major<16 * COUNT>(b, c));
}
