// Shared by all attention kernels of the workspace: tiles of heads in shared memory, and products of them by tensor cores.
//
// A kernel is compiled for a few head widths D and takes any `width` up to D that 8 divides: columns beyond it are zeros
// in shared memory, where they change no product, and are not stored.
#pragma once

#include "device.cuh"

#define TILE 64
// Bytes of shared memory of a block on every supported GPU: 99 KiB on compute capability 8.6, 8.9 and 12.0.
#define SHARED_LIMIT (99 * 1024)
#define LOG2_E 1.44269504f
#define MASKED (-1e30f)

// Eight values more than D: 16 bytes, which moves neighboring rows to other banks for every D that 16 divides. Where a
// row is a key's the first four of them may hold an integer.
template <int D> struct Row {
    static constexpr int stride = D + 8;
};

// Starts copying COUNT rows of one head to shared memory with THREADS threads, all of the block; zeros for rows beyond `rows`
// and columns beyond `width`, whose addresses are never read. A thread keeps its columns and takes every STEP-th row, so
// that the copies unroll to one addition each.
template <int D, int COUNT, int THREADS, typename T>
__device__ __forceinline__ void copy_tile(T* to, const T* from, int first, int rows, int stride, int width) {
    constexpr int PIECE = 16 / sizeof(T), PIECES = D / PIECE, STEP = THREADS / PIECES;
    static_assert(THREADS % PIECES == 0 && (COUNT % STEP == 0 || COUNT < STEP), "threads without whole rows");
    int row = threadIdx.x / PIECES, column = threadIdx.x % PIECES * PIECE;
    if (COUNT < STEP && row >= COUNT) return;
    to += row * Row<D>::stride + column;
    from += (i64)(first + row) * stride + column;
#pragma unroll
    for (int turn = 0; turn < COUNT; turn += STEP)
        copy_async_16(to + turn * Row<D>::stride, from + (i64)turn * stride, column < width && first + row + turn < rows);
}

// Addresses for ldmatrix_x4: a 16 x 16 piece of rows as the left operand of a product, as its right operand with the
// rows being columns of the result, and (transposed) as its right operand with the rows being summed over.
__device__ __forceinline__ const scalar_t* left(const scalar_t* tile, int stride, int row, int column) {
    int lane = threadIdx.x & 31;
    return tile + (row + (lane & 15)) * stride + column + (lane >> 4) * 8;
}

__device__ __forceinline__ const scalar_t* right(const scalar_t* tile, int stride, int row, int column) {
    int lane = threadIdx.x & 31;
    return tile + (row + (lane & 7) + (lane >> 4) * 8) * stride + column + ((lane >> 3) & 1) * 8;
}

__device__ __forceinline__ const scalar_t* right_summed(const scalar_t* tile, int stride, int row, int column) {
    int lane = threadIdx.x & 31;
    return tile + (row + (lane & 15)) * stride + column + (lane >> 4) * 8;
}

// result[n] += the left piece's 16 rows times columns 8n .. 8n + 8 of the rows of `tile`: a product with its transpose.
template <int D, int COLUMNS> __device__ __forceinline__ void product_transposed(float (*result)[4], const u32 piece[4], const scalar_t* tile,
                                                             int first, int column) {
#pragma unroll
    for (int n = 0; n < COLUMNS / 8; n += 2) {
        u32 r[4];
        ldmatrix_x4(r, right(tile, Row<D>::stride, first + n * 8, column));
        mma_m16n8k16(result[n], piece, r[0], r[1]);
        mma_m16n8k16(result[n + 1], piece, r[2], r[3]);
    }
}

// result[n] += the left piece times 16 rows of `tile`, columns first + 8n .. first + 8n + 8.
template <int STRIDE, int COLUMNS> __device__ __forceinline__ void product(float (*result)[4], const u32 piece[4], const scalar_t* tile, int row,
                                                       int first) {
#pragma unroll
    for (int n = 0; n < COLUMNS / 8; n += 2) {
        u32 r[4];
        ldmatrix_x4_transposed(r, right_summed(tile, STRIDE, row, first + n * 8));
        mma_m16n8k16(result[n], piece, r[0], r[1]);
        mma_m16n8k16(result[n + 1], piece, r[2], r[3]);
    }
}
