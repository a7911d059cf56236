// Attention's backward pass for heads of 128 on Hopper: the two kernels of attention_backward.cuh, whose formulas and order
// hold here too. A warpgroup keeps its scores in registers, where the next products take them from.

#include "attention_128_sm90a.cuh"
#include "tree_mask.cuh"

#define OWNED 128

// d_keys [tokens, key_heads * width]; d_values: rows of d_value_stride. Grid (tiles of OWNED keys, key heads).
extern "C" __global__ void __launch_bounds__(256)
    attention_keys_128_sm90a(float* d_keys, scalar_t* d_values, const scalar_t* d_out, const scalar_t* queries, const scalar_t* keys,
                             const scalar_t* values, const float* lse, const float* deltas, const int* nodes, const int* ends,
                             const int* tables, int rows, int tokens, int heads, int key_heads, int width, int value_stride, float scale) {
    constexpr int QUERIES = TILE;
    DYNAMIC_SHARED(scalar_t, shared);
    scalar_t *tile_k = shared, *tile_v = tile_k + OWNED * WIDTH, *tile_q = tile_v + OWNED * WIDTH, *tile_o = tile_q + 2 * QUERIES * WIDTH;
    float *tile_lse = (float*)(tile_o + 2 * QUERIES * WIDTH), *tile_deltas = tile_lse + 2 * QUERIES;
    int* tile_nodes = (int*)(tile_deltas + 2 * QUERIES);
    int key_head = blockIdx.y, group = heads / key_heads, first_key = blockIdx.x * OWNED, count = (tokens + TILE - 1) / TILE;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, half = warp >> 2, row = warp * 16 + (lane >> 2), pair = (lane & 3) * 2;
    int query_stride = heads * width, key_stride = key_heads * width;
    float scale2 = scale * LOG2_E;

    copy_rows<OWNED>(tile_k, keys + key_head * WIDTH, first_key, tokens, key_stride);
    copy_rows<OWNED>(tile_v, values + key_head * WIDTH, first_key, tokens, value_stride);
    copy_async_commit();
    float sum_k[WIDTH / 2], sum_v[WIDTH / 2];
    for (int i = 0; i < WIDTH / 2; i++) sum_k[i] = sum_v[i] = 0.f;
    int end[2];
    for (int r = 0; r < 2; r++) end[r] = first_key + row + r * 8 < tokens ? ends[first_key + row + r * 8] : 0;
    Tiles known(tables, tokens);
    int block = 2 * blockIdx.x, own = block + half;
    int last_end = max(known.last[block], block + 1 < count ? known.last[block + 1] : 0), first_end = own < count ? known.first[own] : 0;
    // The first row that sees a key of the block. Rows ascend, and row i is node i plus the number of earlier
    // nodes without a row; if every node has a row, there is no search.
    int low = max(0, first_key - (tokens - rows)), high = min(first_key, rows);
    while (low < high) {
        int middle = (low + high) / 2;
        if (nodes[middle] < first_key) low = middle + 1;
        else high = middle;
    }
    auto fetch = [&](int tile, int head, int stage) {
        int first_row = tile * QUERIES, at = stage * QUERIES;
        copy_rows<QUERIES>(tile_q + at * WIDTH, queries + head * WIDTH, first_row, rows, query_stride);
        copy_rows<QUERIES>(tile_o + at * WIDTH, d_out + head * WIDTH, first_row, rows, query_stride);
        // Rows beyond the last are zeros, also in d_out: whatever they see, they add nothing.
        copy_values<QUERIES>(tile_lse + at, lse + head, first_row, rows, heads);
        copy_values<QUERIES>(tile_deltas + at, deltas + head, first_row, rows, heads);
        copy_values<QUERIES>(tile_nodes + at, nodes, first_row, rows, 1);
        copy_async_commit();
    };
    // The first and the last node of a tile of rows; past the end, the first is out of sight of every key.
    auto first_of = [&](int tile) { return tile * QUERIES < rows ? nodes[tile * QUERIES] : last_end; };
    auto last_of = [&](int tile) { return tile * QUERIES < rows ? nodes[min(tile * QUERIES + QUERIES, rows) - 1] : 0; };
    int tile = low / QUERIES, head = key_head * group;
    int first_node = low < rows ? first_of(tile) : last_end, last_node = last_of(tile);
    // The next tile's nodes are read a tile ahead.
    int next_first = first_of(tile + 1), next_last = last_of(tile + 1);
    if (first_node < last_end) fetch(tile, head, 0);

    for (int stage = 0; first_node < last_end; stage ^= 1) {
        bool all = first_key + half * 64 + 63 <= first_node && first_end > last_node;
        wait_for_tiles();
        if (++head == (key_head + 1) * group) {
            head = key_head * group, tile++;
            first_node = next_first, last_node = next_last;
            next_first = first_of(tile + 1), next_last = last_of(tile + 1);
        }
        if (first_node < last_end) fetch(tile, head, stage ^ 1);
        const scalar_t *qt = tile_q + stage * QUERIES * WIDTH, *ot = tile_o + stage * QUERIES * WIDTH;
        const float *row_lse = tile_lse + stage * QUERIES, *row_deltas = tile_deltas + stage * QUERIES;
        const int* row_nodes = tile_nodes + stage * QUERIES;

        float s[QUERIES / 2], d[QUERIES / 2];
        u32 pieces[QUERIES / 16][4];
        wgmma_fence();
        gemm_ss<OWNED>(s, tile_k, half * 64, qt);
        wgmma_commit();
        gemm_ss<OWNED>(d, tile_v, half * 64, ot);
        wgmma_commit();
        wgmma_wait<1>(s);
#pragma unroll
        for (int i = 0; i < QUERIES / 2; i++) {
            int local = i / 4 * 8 + pair + (i & 1);
            s[i] = exp2_approximate(s[i] * scale2 - row_lse[local] * LOG2_E);
        }
        if (!all) {
#pragma unroll
            for (int i = 0; i < QUERIES / 2; i++) {
                int node = row_nodes[i / 4 * 8 + pair + (i & 1)], r = i >> 1 & 1;
                if ((first_key + row + r * 8 > node) | (node >= end[r])) s[i] = 0.f;
            }
        }
        to_operand(pieces, s);
        wgmma_fence();
        gemm_rs(sum_v, pieces, ot);
        wgmma_commit();
        wgmma_wait<1>(d);
#pragma unroll
        for (int i = 0; i < QUERIES / 2; i++) s[i] *= (d[i] - row_deltas[i / 4 * 8 + pair + (i & 1)]) * scale;
        u32 slopes[QUERIES / 16][4];
        to_operand(slopes, s);
        wgmma_fence();
        gemm_rs(sum_k, slopes, qt);
        wgmma_commit();
        wgmma_wait<0>(sum_v, sum_k);
    }
    // Keys that no row sees have waited for nothing so far: no block ends with copies under way.
    copy_async_wait<0>();
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int key = first_key + row + r * 8;
        if (key >= tokens) continue;
        u64 at = key_head * WIDTH + pair;
#pragma unroll
        for (int n = 0; n < WIDTH / 8; n++) {
            store2(d_keys + (u64)key * key_stride + at + n * 8, sum_k[4 * n + 2 * r], sum_k[4 * n + 2 * r + 1]);
            store2(d_values + (u64)key * value_stride + at + n * 8, sum_v[4 * n + 2 * r], sum_v[4 * n + 2 * r + 1]);
        }
    }
}

// d_queries [rows, heads * width]; deltas are mended. Grid (tiles of OWNED rows, heads); otherwise as the forward pass.
extern "C" __global__ void __launch_bounds__(256)
    attention_queries_128_sm90a(float* d_queries, const scalar_t* d_out, const scalar_t* queries, const scalar_t* keys, const scalar_t* values,
                                const float* lse, float* deltas, const int* nodes, const int* first_tiles, const int* ends,
                                const int* tables, int rows, int tokens, int heads, int key_heads, int width, int value_stride, float scale) {
    constexpr int KEYS = TILE;
    DYNAMIC_SHARED(scalar_t, shared);
    scalar_t *tile_q = shared, *tile_o = tile_q + OWNED * WIDTH, *tile_k = tile_o + OWNED * WIDTH, *tile_v = tile_k + 2 * KEYS * WIDTH;
    int* tile_ends = (int*)(tile_v + 2 * KEYS * WIDTH);
    int tile = gridDim.x - 1 - blockIdx.x, head = blockIdx.y, key_head = head / (heads / key_heads);
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, half = warp >> 2, row = warp * 16 + (lane >> 2), pair = (lane & 3) * 2;
    int first_row = tile * OWNED, last_row = min(first_row + OWNED, rows) - 1;
    int first_node = nodes[first_row], last_node = nodes[last_row];
    int own_first = nodes[min(first_row + half * 64, last_row)], own_last = nodes[min(first_row + half * 64 + 63, last_row)];
    int query_stride = heads * width, key_stride = key_heads * width;
    const scalar_t *k = keys + key_head * WIDTH, *v = values + key_head * WIDTH;
    int own[2];
    float row_lse[2], delta[2], missing[2] = {0.f, 0.f};
    for (int r = 0; r < 2; r++) {
        int i = min(first_row + row + r * 8, last_row);
        own[r] = nodes[i];
        row_lse[r] = lse[(u64)i * heads + head] * LOG2_E;
        delta[r] = deltas[(u64)i * heads + head];
    }
    float scale2 = scale * LOG2_E;
    int blocks = last_node / KEYS + 1;
    Tiles tiles(tables, tokens);

    auto all = [&](int b, int first, int last) { return b * KEYS + KEYS - 1 <= first && tiles.first[b] > last; };
    auto fetch = [&](int b, int stage) {
        copy_rows<KEYS>(tile_k + stage * KEYS * WIDTH, k, b * KEYS, tokens, key_stride);
        copy_rows<KEYS>(tile_v + stage * KEYS * WIDTH, v, b * KEYS, tokens, value_stride);
        if (!all(b, first_node, last_node)) copy_values<KEYS>(tile_ends + stage * KEYS, ends, b * KEYS, tokens, 1);
        copy_async_commit();
    };

    copy_rows<OWNED>(tile_q, queries + head * WIDTH, first_row, rows, query_stride);
    copy_rows<OWNED>(tile_o, d_out + head * WIDTH, first_row, rows, query_stride);
    int b = first_tiles[2 * tile];
    fetch(b, 0);
    float sums[WIDTH / 2];
    for (int i = 0; i < WIDTH / 2; i++) sums[i] = 0.f;

    for (int stage = 0; b < blocks; stage ^= 1) {
        int following = tiles.visible<KEYS>(b + 1, blocks, first_node);
        wait_for_tiles();
        if (following < blocks) fetch(following, stage ^ 1);
        const scalar_t *kt = tile_k + stage * KEYS * WIDTH, *vt = tile_v + stage * KEYS * WIDTH;

        float s[KEYS / 2], d[KEYS / 2];
        wgmma_fence();
        gemm_ss<OWNED>(s, tile_q, half * 64, kt);
        wgmma_commit();
        gemm_ss<OWNED>(d, tile_o, half * 64, vt);
        wgmma_commit();
        wgmma_wait<1>(s);
#pragma unroll
        for (int i = 0; i < KEYS / 2; i++) s[i] = exp2_approximate(s[i] * scale2 - row_lse[i >> 1 & 1]);
        if (!all(b, own_first, own_last)) {
            const int* known = tile_ends + stage * KEYS;
#pragma unroll
            for (int i = 0; i < KEYS / 2; i++) {
                int local = i / 4 * 8 + pair + (i & 1), node = own[i >> 1 & 1];
                if ((b * KEYS + local > node) | (node >= known[local])) s[i] = 0.f;
            }
        }
        wgmma_wait<0>(d);
#pragma unroll
        for (int i = 0; i < KEYS / 2; i++) {
            int r = i >> 1 & 1;
            float ds = s[i] * (d[i] - delta[r]);
            missing[r] += ds;
            s[i] = ds * scale;
        }
        u32 pieces[KEYS / 16][4];
        to_operand(pieces, s);
        wgmma_fence();
        gemm_rs(sums, pieces, kt);
        wgmma_commit();
        wgmma_wait<0>(sums);
        b = following;
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float rest = missing[r];
        rest += __shfl_xor_sync(FULL_WARP, rest, 1);
        rest += __shfl_xor_sync(FULL_WARP, rest, 2);
        int i = first_row + row + r * 8;
        if (i >= rows) continue;
        if (pair == 0) deltas[(u64)i * heads + head] = delta[r] + rest;
        float* to = d_queries + (u64)i * query_stride + head * WIDTH + pair;
#pragma unroll
        for (int n = 0; n < WIDTH / 8; n++) store2(to + n * 8, sums[4 * n + 2 * r], sums[4 * n + 2 * r + 1]);
    }
}
