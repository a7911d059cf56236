// The tree mask of the attention kernels.
//
// Nodes lie depth-first and key j is visible to query i exactly if j <= i < ends[j] (the column-wise form of FlashMask,
// arXiv 2410.01359). A query is a row of the operation and may stand for any node; `nodes` says which. Tiles are 64 keys
// with known smallest and largest end: tiles that no query of a block sees are skipped, whole subtrees at a time, and one that
// all of them see needs no mask.
#pragma once

#include "attention_forward.cuh"

template <int D> __device__ __forceinline__ int* end_of(scalar_t* tile, int row) {
    return (int*)(tile + row * Row<D>::stride + D);
}

template <int D> __device__ __forceinline__ int end_of(const scalar_t* tile, int row) {
    return *(const int*)(tile + row * Row<D>::stride + D);
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

// What the forward kernels ask, for blocks of COUNT rows: see attention_forward.cuh. ends [tokens]; tables: see Tiles; nodes
// [rows], ascending; first_tiles: for each 64 rows the first 64 keys that some of them see.
template <int COUNT> struct Tree {
    static constexpr bool MASKS = true;
    const int *nodes, *first_tiles, *ends;
    Tiles tiles;
    int tokens, key_stride, value_stride, tile, first_row, last_row;

    __device__ __forceinline__ Tree(const int* nodes, const int* first_tiles, const int* ends, const int* tables, int rows, int tokens,
                                    int key_stride, int value_stride)
        : nodes(nodes), first_tiles(first_tiles), ends(ends), tiles(tables, tokens), tokens(tokens), key_stride(key_stride),
          value_stride(value_stride) {
        // Later queries see more keys: their blocks start first, so that short ones fill the gaps at the end.
        tile = gridDim.x - 1 - blockIdx.x;
        first_row = tile * COUNT, last_row = min(first_row + COUNT, rows) - 1;
    }
    __device__ __forceinline__ int node(int row) const { return nodes[row]; }
    __device__ __forceinline__ int first_tile() const { return first_tiles[tile * (COUNT / TILE)]; }
    template <int KEYS> __device__ __forceinline__ int visible(int b, int end, int node) const {
        return tiles.template visible<KEYS>(b, end, node);
    }
    template <int KEYS> __device__ __forceinline__ bool open(int b, int last) const {
        if constexpr (KEYS <= TILE) return tiles.first[b * KEYS / TILE] > last;
        else return 2 * b + 1 < (tokens + TILE - 1) / TILE && min(tiles.first[2 * b], tiles.first[2 * b + 1]) > last;
    }
    template <int KEYS> __device__ __forceinline__ Place place(int b) const { return {0, b * KEYS, tokens}; }
    template <int D, int KEYS> __device__ __forceinline__ void fetch(scalar_t* keys, int b) const {
        if (threadIdx.x >= KEYS) return;
        int key = b * KEYS + threadIdx.x;
        *end_of<D>(keys, threadIdx.x) = key < tokens ? ends[key] : 0;
    }
    template <int D> __device__ __forceinline__ bool hidden(const scalar_t* keys, int local, int node) const {
        return node >= end_of<D>(keys, local);
    }
};
