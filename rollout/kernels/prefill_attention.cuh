// Attention of prompts over a KV cache in blocks: training's kernels (attention_forward.cuh) with the mask of a sequence.
//
// A CUDA block has rows of one sequence. Tiles of keys begin at multiples of their length in the sequence, and a block of the
// cache holds whole tiles. So the bits of a row depend on its query, keys and values alone: not on the other rows of a run, nor
// on where a prompt is cut or how much of it was in the cache before.
#pragma once

#include "attention_forward.cuh"

struct Paged {
    static constexpr bool MASKS = false;
    const int* blocks;
    int shift, key_stride, value_stride, first_row, last_row, position;

    // tiles [gridDim.x, 4]: first row, rows, position of the first one in its sequence, the sequence; table [sequences, columns]:
    // blocks of 2^shift keys, of which each row is `stride` values.
    __device__ __forceinline__ Paged(const int* tiles, const int* table, int columns, int shift, int stride)
        : shift(shift), key_stride(stride), value_stride(stride) {
        int4 tile = ((const int4*)tiles)[blockIdx.x];
        first_row = tile.x, last_row = tile.x + tile.y - 1, position = tile.z;
        blocks = table + (i64)tile.w * columns;
    }
    __device__ __forceinline__ int node(int row) const { return position + row - first_row; }
    __device__ __forceinline__ int first_tile() const { return 0; }
    template <int KEYS> __device__ __forceinline__ int visible(int b, int, int) const { return b; }
    template <int KEYS> __device__ __forceinline__ bool open(int, int) const { return true; }
    template <int KEYS> __device__ __forceinline__ Place place(int b) const {
        int key = b * KEYS;
        i64 row = ((i64)blocks[key >> shift] << shift) + (key & ((1 << shift) - 1));
        return {row * key_stride, 0, node(last_row) + 1 - key};
    }
};
