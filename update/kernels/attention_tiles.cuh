// Shared by the three attention kernels: tiles of heads in shared memory, and the tree mask.
//
// Nodes lie depth-first and key j is visible to query i exactly if j <= i < ends[j] (the column-wise form of FlashMask,
// arXiv 2410.01359). A query is a row of the operation and may stand for any node; `nodes` says which. Tiles are 64 keys
// with known smallest and largest end: tiles that no query of a block sees are skipped, whole subtrees at a time, and one that
// all of them see needs no mask.
//
// A kernel is compiled for a few head widths D and takes any `width` up to D that 8 divides: columns beyond it are zeros
// in shared memory, where they change no product, and are not stored.
#pragma once

#include "common.cuh"

#define TILE 64
// Bytes of shared memory of a block on every supported GPU: 99 KiB on compute capability 8.6, 8.9 and 12.0.
#define SHARED_LIMIT (99 * 1024)
#define LOG2_E 1.44269504f
#define MASKED (-1e30f)

// Eight values more than D: 16 bytes, which moves neighboring rows to other banks for every D that 16 divides. Where a
// row is a key's the first four of them hold its end.
template <int D> struct Row {
    static constexpr int stride = D + 8;
};

template <int D> __device__ __forceinline__ int* end_of(scalar_t* tile, int row) {
    return (int*)(tile + row * Row<D>::stride + D);
}

template <int D> __device__ __forceinline__ int end_of(const scalar_t* tile, int row) {
    return *(const int*)(tile + row * Row<D>::stride + D);
}

// Starts copying COUNT rows of one head to shared memory with THREADS threads, all of the block; zeros for rows beyond `rows`
// and columns beyond `width`, whose addresses are never read. A thread keeps its columns and takes every STEP-th row, so
// that the copies unroll to one addition each.
template <int D, int COUNT, int THREADS>
__device__ __forceinline__ void copy_tile(scalar_t* to, const scalar_t* from, int first, int rows, int stride, int width) {
    constexpr int PIECES = D / 8, STEP = THREADS / PIECES;
    static_assert(THREADS % PIECES == 0 && (COUNT % STEP == 0 || COUNT < STEP), "threads without whole rows");
    int row = threadIdx.x / PIECES, column = threadIdx.x % PIECES * 8;
    if (COUNT < STEP && row >= COUNT) return;
    to += row * Row<D>::stride + column;
    from += (i64)(first + row) * stride + column;
#pragma unroll
    for (int turn = 0; turn < COUNT; turn += STEP)
        copy_async_16(to + turn * Row<D>::stride, from + (i64)turn * stride, column < width && first + row + turn < rows);
}

// Facts about each 64 keys, `count` values a table: the largest and the smallest of their ends (0 beyond the
// last key), and the next 64 whose largest end is larger. A query past this largest end sees no key before
// that.
struct Tiles {
    const int *last, *first, *next;
    __device__ __forceinline__ Tiles(const int* tables, int tokens) {
        int count = (tokens + TILE - 1) / TILE;
        last = tables, first = tables + count, next = tables + 2 * count;
    }
    // The first of the tiles of KEYS keys from `tile` on, up to `end`, that `node` or a later one might see.
    template <int KEYS> __device__ __forceinline__ int visible(int tile, int end, int node) const {
        while (tile < end && last[tile * KEYS / TILE] <= node) tile = next[tile * KEYS / TILE] * (TILE / KEYS);
        return tile;
    }
};

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
