// Attention forward for heads of 128 on Hopper: as attention_forward.cuh, with tiles of 128 queries and 128 keys.
//
// `Known` is as there, but for what it stores of the keys of a tile: if it MASKS it has `ends` [tokens], and a key is hidden
// from the nodes from its end on.

#pragma once

#include "attention_128_sm90a.cuh"
#include "attention_forward.cuh"

// Arguments as attention_forward's. Grid (tiles of rows, heads), 256 threads.
template <class Known>
__device__ __forceinline__ void attention_forward_128_sm90a(scalar_t* out, float* lse, const scalar_t* queries, const scalar_t* keys,
                                                            const scalar_t* values, const Known& known, int heads, int key_heads,
                                                            float scale) {
    constexpr int ROWS = 128, KEYS = 128;
    DYNAMIC_SHARED(scalar_t, shared);
    scalar_t *tile_q = shared, *tile_k = tile_q + ROWS * WIDTH, *tile_v = tile_k + 2 * KEYS * WIDTH;
    int* tile_ends = (int*)(tile_v + 2 * KEYS * WIDTH);
    int head = blockIdx.y, key_head = head / (heads / key_heads);
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, half = warp >> 2, row = warp * 16 + (lane >> 2), pair = (lane & 3) * 2;
    int first_row = known.first_row, last_row = known.last_row;
    int first_node = known.node(first_row), last_node = known.node(last_row);
    // The nodes of this warpgroup's rows.
    int own_first = known.node(min(first_row + half * 64, last_row)), own_last = known.node(min(first_row + half * 64 + 63, last_row));
    int own[2];
    for (int r = 0; r < 2; r++) own[r] = known.node(min(first_row + row + r * 8, last_row));
    int query_stride = heads * WIDTH;
    const scalar_t *k = keys + key_head * WIDTH, *v = values + key_head * WIDTH;
    float scale2 = scale * LOG2_E;
    int end = last_node / TILE + 1;

    // True if every node from `first` to `last` sees all of a tile's keys.
    auto all = [&](int b, int first, int last) { return b * KEYS + KEYS - 1 <= first && known.template open<KEYS>(b, last); };
    auto fetch = [&](int b, int stage) {
        Place place = known.template place<KEYS>(b);
        copy_rows<KEYS>(tile_k + stage * KEYS * WIDTH, k + place.offset, place.first, place.rows, known.key_stride);
        copy_rows<KEYS>(tile_v + stage * KEYS * WIDTH, v + place.offset, place.first, place.rows, known.value_stride);
        if constexpr (Known::MASKS) {
            if (!all(b, first_node, last_node)) copy_values<KEYS>(tile_ends + stage * KEYS, known.ends, place.first, place.rows, 1);
        }
        copy_async_commit();
    };

    copy_rows<ROWS>(tile_q, queries + head * WIDTH, first_row, last_row + 1, query_stride);
    // `at` counts TILE keys, of which a tile has two.
    int at = known.first_tile();
    fetch(at / 2, 0);
    float sums[WIDTH / 2], top[2] = {MASKED, MASKED}, total[2] = {0.f, 0.f};
    for (int i = 0; i < WIDTH / 2; i++) sums[i] = 0.f;

    for (int stage = 0; at < end; stage ^= 1) {
        int b = at / 2;
        at = known.template visible<TILE>(2 * b + 2, end, first_node);
        wait_for_tiles();
        if (at < end) fetch(at / 2, stage ^ 1);
        const scalar_t *kt = tile_k + stage * KEYS * WIDTH, *vt = tile_v + stage * KEYS * WIDTH;

        float s[KEYS / 2];
        wgmma_fence();
        gemm_ss<ROWS>(s, tile_q, half * 64, kt);
        wgmma_commit();
        wgmma_wait<0>(s);
        if (!all(b, own_first, own_last)) {
            const int* ends = tile_ends + stage * KEYS;
#pragma unroll
            for (int i = 0; i < KEYS / 2; i++) {
                int local = i / 4 * 8 + pair + (i & 1), node = own[i >> 1 & 1];
                bool hidden = b * KEYS + local > node;
                if constexpr (Known::MASKS) hidden = hidden | (node >= ends[local]);
                if (hidden) s[i] = MASKED;
            }
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float largest = top[r];
#pragma unroll
            for (int i = 2 * r; i < KEYS / 2; i += 4) largest = fmaxf(largest, fmaxf(s[i], s[i + 1]));
            largest = fmaxf(largest, __shfl_xor_sync(FULL_WARP, largest, 1));
            largest = fmaxf(largest, __shfl_xor_sync(FULL_WARP, largest, 2));
            // Until a row has seen a key, its exponents must not cancel to zero.
            float shrink = exp2_approximate((top[r] - largest) * scale2), base = largest <= MASKED ? 0.f : largest * scale2;
            float sum = 0.f;
            top[r] = largest;
#pragma unroll
            for (int i = 2 * r; i < KEYS / 2; i += 4)
                for (int e = i; e < i + 2; e++) {
                    s[e] = exp2_approximate(s[e] * scale2 - base);
                    sum += s[e];
                }
            total[r] = total[r] * shrink + sum;
#pragma unroll
            for (int i = 2 * r; i < WIDTH / 2; i += 4) {
                sums[i] *= shrink;
                sums[i + 1] *= shrink;
            }
        }
        u32 pieces[KEYS / 16][4];
        to_operand(pieces, s);
        wgmma_fence();
        gemm_rs(sums, pieces, vt);
        wgmma_commit();
        wgmma_wait<0>(sums);
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float sum = total[r];
        sum += __shfl_xor_sync(FULL_WARP, sum, 1);
        sum += __shfl_xor_sync(FULL_WARP, sum, 2);
        int i = first_row + row + r * 8;
        if (i > last_row) continue;
        float inverse = 1.f / sum;
        if (lse && pair == 0) lse[(u64)i * heads + head] = top[r] * scale + logf(sum);
        scalar_t* to = out + (u64)i * query_stride + head * WIDTH + pair;
#pragma unroll
        for (int n = 0; n < WIDTH / 8; n++) store2(to + n * 8, sums[4 * n + 2 * r] * inverse, sums[4 * n + 2 * r + 1] * inverse);
    }
}
