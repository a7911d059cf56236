// Attention under the tree mask: the forward pass of FlashAttention-2 (arXiv 2307.08691) on 16-bit tensor cores.
//
// A block owns 64 queries of one head, a warp 16 of them, and loops over the tiles of keys that some of them see,
// prefetching the next one. Scores stay in registers; sums are f32.

#pragma once

#include "attention_tiles.cuh"

// out [rows, heads * width] and lse [rows, heads] (log-sum-exp of the scaled scores, f32) from queries
// [rows, heads * width], keys [tokens, key_heads * width] and values, rows of `value_stride`. ends [tokens]; tables: see
// Tiles; nodes [rows], ascending; first_tiles: for each 64 rows the first 64 keys that some of them see.
// Grid (tiles of rows, heads), 128 threads.
template <int D, int KEYS>
__device__ __forceinline__ void attention_forward(scalar_t* out, float* lse, const scalar_t* queries, const scalar_t* keys, const scalar_t* values,
                              const int* nodes, const int* first_tiles, const int* ends, const int* tables, int rows,
                              int tokens, int heads, int key_heads, int width, int value_stride, float scale) {
    constexpr int S = Row<D>::stride;
    static_assert((TILE + 4 * KEYS) * S * sizeof(scalar_t) <= SHARED_LIMIT, "tiles too large");
    DYNAMIC_SHARED(scalar_t, shared);
    scalar_t *tile_q = shared, *tile_k = tile_q + TILE * S, *tile_v = tile_k + 2 * KEYS * S;
    // Later queries see more keys: their blocks start first, so that short ones fill the gaps at the end.
    int tile = gridDim.x - 1 - blockIdx.x, head = blockIdx.y, key_head = head / (heads / key_heads);
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, row = warp * 16 + (lane >> 2), pair = (lane & 3) * 2;
    int first_row = tile * TILE, last_row = min(first_row + TILE, rows) - 1;
    int first_node = nodes[first_row], last_node = nodes[last_row];
    int own[2];
    for (int r = 0; r < 2; r++) own[r] = nodes[min(first_row + row + r * 8, last_row)];
    int query_stride = heads * width, key_stride = key_heads * width;
    const scalar_t *k = keys + key_head * width, *v = values + key_head * width;
    float scale2 = scale * LOG2_E;
    int blocks = last_node / KEYS + 1;
    Tiles tiles(tables, tokens);

    auto fetch = [&](int b, int stage) {
        copy_tile<D, KEYS, 128>(tile_k + stage * KEYS * S, k, b * KEYS, tokens, key_stride, width);
        copy_tile<D, KEYS, 128>(tile_v + stage * KEYS * S, v, b * KEYS, tokens, value_stride, width);
        if (threadIdx.x < KEYS) {
            int key = b * KEYS + threadIdx.x;
            *end_of<D>(tile_k + stage * KEYS * S, threadIdx.x) = key < tokens ? ends[key] : 0;
        }
    };

    copy_tile<D, TILE, 128>(tile_q, queries + head * width, first_row, rows, query_stride, width);
    int b = first_tiles[tile] * (TILE / KEYS);
    fetch(b, 0);
    copy_async_commit();
    float sums[D / 8][4], top[2] = {MASKED, MASKED}, total[2] = {0.f, 0.f};
    for (int n = 0; n < D / 8; n++)
        for (int e = 0; e < 4; e++) sums[n][e] = 0.f;

    for (int stage = 0; b < blocks; stage ^= 1) {
        int following = tiles.visible<KEYS>(b + 1, blocks, first_node);
        if (following < blocks) fetch(following, stage ^ 1);
        copy_async_commit();
        copy_async_wait<1>();
        __syncthreads();
        const scalar_t *kt = tile_k + stage * KEYS * S, *vt = tile_v + stage * KEYS * S;

        float s[KEYS / 8][4];
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
            for (int e = 0; e < 4; e++) s[n][e] = 0.f;
#pragma unroll
        for (int c = 0; c < D; c += 16) {
            u32 piece[4];
            ldmatrix_x4(piece, left(tile_q, S, warp * 16, c));
            product_transposed<D, KEYS>(s, piece, kt, 0, c);
        }
        bool all = b * KEYS + KEYS - 1 <= first_node && tiles.first[b * KEYS / TILE] > last_node;
        if (!all) {
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++)
                for (int e = 0; e < 4; e++) {
                    int local = n * 8 + pair + (e & 1), node = own[e >> 1];
                    if (b * KEYS + local > node || node >= end_of<D>(kt, local)) s[n][e] = MASKED;
                }
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float largest = top[r];
            for (int n = 0; n < KEYS / 8; n++) largest = fmaxf(largest, fmaxf(s[n][2 * r], s[n][2 * r + 1]));
            largest = fmaxf(largest, __shfl_xor_sync(FULL_WARP, largest, 1));
            largest = fmaxf(largest, __shfl_xor_sync(FULL_WARP, largest, 2));
            // Until a row has seen a key, its exponents must not cancel to zero.
            float shrink = exp2_approximate((top[r] - largest) * scale2), base = largest <= MASKED ? 0.f : largest * scale2;
            float sum = 0.f;
            top[r] = largest;
            for (int n = 0; n < KEYS / 8; n++)
                for (int e = 2 * r; e < 2 * r + 2; e++) {
                    s[n][e] = exp2_approximate(s[n][e] * scale2 - base);
                    sum += s[n][e];
                }
            total[r] = total[r] * shrink + sum;
            for (int n = 0; n < D / 8; n++) {
                sums[n][2 * r] *= shrink;
                sums[n][2 * r + 1] *= shrink;
            }
        }
#pragma unroll
        for (int c = 0; c < KEYS / 16; c++) {
            const float *p = s[2 * c], *q = s[2 * c + 1];
            u32 piece[4] = {pack_scalars(p[0], p[1]), pack_scalars(p[2], p[3]), pack_scalars(q[0], q[1]), pack_scalars(q[2], q[3])};
            product<S, D>(sums, piece, vt, c * 16, 0);
        }
        __syncthreads();
        b = following;
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float sum = total[r];
        sum += __shfl_xor_sync(FULL_WARP, sum, 1);
        sum += __shfl_xor_sync(FULL_WARP, sum, 2);
        int i = first_row + row + r * 8;
        if (i >= rows) continue;
        float inverse = 1.f / sum;
        if (pair == 0) lse[(u64)i * heads + head] = top[r] * scale + logf(sum);
        for (int n = 0; n < D / 8; n++)
            if (n * 8 < width)
                store2(out + (u64)i * query_stride + head * width + n * 8 + pair, sums[n][2 * r] * inverse,
                       sums[n][2 * r + 1] * inverse);
    }
}
