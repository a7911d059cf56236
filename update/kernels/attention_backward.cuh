// Attention backward in two kernels: one whose blocks own up to 64 keys and sum over the queries that see them, one whose
// blocks own 64 queries and sum over the keys they see. Scores are computed twice (7 GEMMs instead of 5), but there are no
// atomics, so bits are the same in every run, and no f32 copy of d_queries.
//
//   p = exp(s - row_lse)      d_v = pT d_out      ds = p * (d_out vT - delta) * scale      d_k = dsT q      d_q = ds k
//   delta = sum over the head of d_out * out
//
// d_queries and d_keys are f32, because the RoPE backward rounds them; d_values are rounded, because GEMMs read them.
//
// The ds of a row sum to zero, but not with a delta from a rounded output. The error is common to all keys: small in each,
// but most of a sum over keys (the gradient of the keys' bias). So the queries' kernel runs first, sums all ds of a row,
// and corrects delta before the keys' kernel uses it.

#pragma once

#include "tree_mask.cuh"

// d_keys [tokens, key_heads * width]; d_values: rows of d_value_stride. Grid (tiles of OWNED keys, key heads), four threads a
// key.
//
// Warps in two columns. First a warp computes the transposed scores of 16 keys against half of the QUERIES of a tile, which
// go to shared memory rounded; then it sums the gradients of its 16 keys over all queries, for half of the head's columns.
template <int D, int OWNED, int QUERIES>
__device__ __forceinline__ void attention_keys(float* d_keys, scalar_t* d_values, const scalar_t* d_out, const scalar_t* queries, const scalar_t* keys,
                           const scalar_t* values, const float* lse, const float* deltas, const int* nodes, const int* ends,
                           const int* tables, int rows, int tokens, int heads, int key_heads, int width, int value_stride,
                           float scale) {
    constexpr int S = Row<D>::stride, W = QUERIES + 8, COLUMNS = D / 2, SIDE = QUERIES / 2;
    static_assert(2 * (OWNED + QUERIES) * S * sizeof(scalar_t) + 2 * OWNED * W * sizeof(scalar_t) + 3 * QUERIES * sizeof(float) <=
                      SHARED_LIMIT,
                  "tiles too large");
    DYNAMIC_SHARED(scalar_t, shared);
    scalar_t *tile_k = shared, *tile_v = tile_k + OWNED * S, *tile_q = tile_v + OWNED * S, *tile_o = tile_q + QUERIES * S;
    scalar_t *tile_p = tile_o + QUERIES * S, *tile_s = tile_p + OWNED * W;
    float *tile_lse = (float*)(tile_s + OWNED * W), *tile_deltas = tile_lse + QUERIES;
    int* tile_nodes = (int*)(tile_deltas + QUERIES);
    int key_head = blockIdx.y, group = heads / key_heads, first_key = blockIdx.x * OWNED, block = first_key / TILE;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, quarter = (warp >> 1) * 16, side = warp & 1;
    int row = quarter + (lane >> 2), pair = (lane & 3) * 2;
    int query_stride = heads * width, key_stride = key_heads * width;
    float scale2 = scale * LOG2_E;

    copy_tile<D, OWNED, 4 * OWNED>(tile_k, keys + key_head * width, first_key, tokens, key_stride, width);
    copy_tile<D, OWNED, 4 * OWNED>(tile_v, values + key_head * width, first_key, tokens, value_stride, width);
    copy_async_commit();
    float sum_k[D / 16][4], sum_v[D / 16][4];
    for (int n = 0; n < D / 16; n++)
        for (int e = 0; e < 4; e++) sum_k[n][e] = sum_v[n][e] = 0.f;
    int end[2];
    for (int r = 0; r < 2; r++) end[r] = first_key + row + r * 8 < tokens ? ends[first_key + row + r * 8] : 0;
    Tiles known(tables, tokens);
    int last_end = known.last[block], first_end = known.first[block], tiles = (rows + QUERIES - 1) / QUERIES;
    // The first row that sees a key of the block. Rows ascend, and row i is node i plus the number of earlier
    // nodes without a row; if every node has a row, there is no search.
    int low = max(0, first_key - (tokens - rows)), high = min(first_key, rows);
    while (low < high) {
        int middle = (low + high) / 2;
        if (nodes[middle] < first_key) low = middle + 1;
        else high = middle;
    }
    for (int tile = low < rows ? low / QUERIES : tiles; tile < tiles; tile++) {
        int first_row = tile * QUERIES, last_row = min(first_row + QUERIES, rows) - 1;
        int first_node = nodes[first_row], last_node = nodes[last_row];
        if (first_node >= last_end) break;
        bool all = first_key + OWNED - 1 <= first_node && first_end > last_node && first_row + QUERIES <= rows;
        for (int head = key_head * group; head < (key_head + 1) * group; head++) {
            copy_tile<D, QUERIES, 4 * OWNED>(tile_q, queries + head * width, first_row, rows, query_stride, width);
            copy_tile<D, QUERIES, 4 * OWNED>(tile_o, d_out + head * width, first_row, rows, query_stride, width);
            copy_async_commit();
            if (threadIdx.x < QUERIES) {
                int i = first_row + threadIdx.x;
                bool inside = i < rows;
                tile_lse[threadIdx.x] = inside ? lse[(u64)i * heads + head] * LOG2_E : 0.f;
                tile_deltas[threadIdx.x] = inside ? deltas[(u64)i * heads + head] : 0.f;
                tile_nodes[threadIdx.x] = inside ? nodes[i] : -1;
            }
            copy_async_wait<0>();
            __syncthreads();

            float s[SIDE / 8][4], d[SIDE / 8][4];
#pragma unroll
            for (int n = 0; n < SIDE / 8; n++)
                for (int e = 0; e < 4; e++) s[n][e] = d[n][e] = 0.f;
#pragma unroll
            for (int c = 0; c < D; c += 16) {
                u32 piece[4];
                ldmatrix_x4(piece, left(tile_k, S, quarter, c));
                product_transposed<D, SIDE>(s, piece, tile_q, side * SIDE, c);
                ldmatrix_x4(piece, left(tile_v, S, quarter, c));
                product_transposed<D, SIDE>(d, piece, tile_o, side * SIDE, c);
            }
#pragma unroll
            for (int n = 0; n < SIDE / 8; n++) {
                float p[4], ds[4];
                for (int e = 0; e < 4; e++) {
                    int local = side * SIDE + n * 8 + pair + (e & 1), node = tile_nodes[local], r = e >> 1;
                    bool visible = all || (first_key + row + r * 8 <= node && node < end[r]);
                    p[e] = visible ? exp2_approximate(s[n][e] * scale2 - tile_lse[local]) : 0.f;
                    ds[e] = p[e] * (d[n][e] - tile_deltas[local]) * scale;
                }
                for (int r = 0; r < 2; r++) {
                    int at = (row + r * 8) * W + side * SIDE + n * 8 + pair;
                    store2(tile_p + at, p[2 * r], p[2 * r + 1]);
                    store2(tile_s + at, ds[2 * r], ds[2 * r + 1]);
                }
            }
            __syncthreads();
#pragma unroll
            for (int c = 0; c < QUERIES; c += 16) {
                u32 pp[4], ps[4];
                ldmatrix_x4(pp, left(tile_p, W, quarter, c));
                ldmatrix_x4(ps, left(tile_s, W, quarter, c));
                if constexpr (D == 16) {
                    // Half of the columns are one product wide: load both halves, use one.
                    u32 r[4];
                    ldmatrix_x4_transposed(r, right_summed(tile_o, S, c, 0));
                    mma_m16n8k16(sum_v[0], pp, side ? r[2] : r[0], side ? r[3] : r[1]);
                    ldmatrix_x4_transposed(r, right_summed(tile_q, S, c, 0));
                    mma_m16n8k16(sum_k[0], ps, side ? r[2] : r[0], side ? r[3] : r[1]);
                } else {
                    product<S, COLUMNS>(sum_v, pp, tile_o, c, side * COLUMNS);
                    product<S, COLUMNS>(sum_k, ps, tile_q, c, side * COLUMNS);
                }
            }
            __syncthreads();
        }
    }
    // Keys that no row sees have waited for nothing so far: no block ends with copies under way.
    copy_async_wait<0>();
#pragma unroll
    for (int n = 0; n < D / 16; n++)
        for (int r = 0; r < 2; r++) {
            int key = first_key + row + r * 8, column = side * COLUMNS + n * 8;
            if (key >= tokens || column >= width) continue;
            u64 at = key_head * width + column + pair;
            store2(d_keys + (u64)key * key_stride + at, sum_k[n][2 * r], sum_k[n][2 * r + 1]);
            store2(d_values + (u64)key * value_stride + at, sum_v[n][2 * r], sum_v[n][2 * r + 1]);
        }
}

// d_queries [rows, heads * width]; deltas are mended. Grid (tiles of rows, heads), 128 threads; otherwise as the forward
// pass.
template <int D, int KEYS>
__device__ __forceinline__ void attention_queries(float* d_queries, const scalar_t* d_out, const scalar_t* queries, const scalar_t* keys,
                              const scalar_t* values, const float* lse, float* deltas, const int* nodes,
                              const int* first_tiles, const int* ends, const int* tables, int rows, int tokens, int heads,
                              int key_heads, int width, int value_stride, float scale) {
    constexpr int S = Row<D>::stride;
    static_assert((2 * TILE + 4 * KEYS) * S * sizeof(scalar_t) <= SHARED_LIMIT, "tiles too large");
    DYNAMIC_SHARED(scalar_t, shared);
    scalar_t *tile_q = shared, *tile_o = tile_q + TILE * S, *tile_k = tile_o + TILE * S, *tile_v = tile_k + 2 * KEYS * S;
    int tile = gridDim.x - 1 - blockIdx.x, head = blockIdx.y, key_head = head / (heads / key_heads);
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, row = warp * 16 + (lane >> 2), pair = (lane & 3) * 2;
    int first_row = tile * TILE, last_row = min(first_row + TILE, rows) - 1;
    int first_node = nodes[first_row], last_node = nodes[last_row];
    int query_stride = heads * width, key_stride = key_heads * width;
    const scalar_t *k = keys + key_head * width, *v = values + key_head * width;
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

    auto fetch = [&](int b, int stage) {
        copy_tile<D, KEYS, 128>(tile_k + stage * KEYS * S, k, b * KEYS, tokens, key_stride, width);
        copy_tile<D, KEYS, 128>(tile_v + stage * KEYS * S, v, b * KEYS, tokens, value_stride, width);
        if (threadIdx.x < KEYS) {
            int key = b * KEYS + threadIdx.x;
            *end_of<D>(tile_k + stage * KEYS * S, threadIdx.x) = key < tokens ? ends[key] : 0;
        }
    };

    copy_tile<D, TILE, 128>(tile_q, queries + head * width, first_row, rows, query_stride, width);
    copy_tile<D, TILE, 128>(tile_o, d_out + head * width, first_row, rows, query_stride, width);
    int b = first_tiles[tile] * (TILE / KEYS);
    fetch(b, 0);
    copy_async_commit();
    float sums[D / 8][4];
    for (int n = 0; n < D / 8; n++)
        for (int e = 0; e < 4; e++) sums[n][e] = 0.f;

    for (int stage = 0; b < blocks; stage ^= 1) {
        int following = tiles.visible<KEYS>(b + 1, blocks, first_node);
        if (following < blocks) fetch(following, stage ^ 1);
        copy_async_commit();
        copy_async_wait<1>();
        __syncthreads();
        const scalar_t *kt = tile_k + stage * KEYS * S, *vt = tile_v + stage * KEYS * S;

        float s[KEYS / 8][4], d[KEYS / 8][4];
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
            for (int e = 0; e < 4; e++) s[n][e] = d[n][e] = 0.f;
#pragma unroll
        for (int c = 0; c < D; c += 16) {
            u32 piece[4];
            ldmatrix_x4(piece, left(tile_q, S, warp * 16, c));
            product_transposed<D, KEYS>(s, piece, kt, 0, c);
            ldmatrix_x4(piece, left(tile_o, S, warp * 16, c));
            product_transposed<D, KEYS>(d, piece, vt, 0, c);
        }
        bool all = b * KEYS + KEYS - 1 <= first_node && tiles.first[b * KEYS / TILE] > last_node;
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
            for (int e = 0; e < 4; e++) {
                int local = n * 8 + pair + (e & 1), r = e >> 1;
                bool visible = all || (b * KEYS + local <= own[r] && own[r] < end_of<D>(kt, local));
                float p = visible ? exp2_approximate(s[n][e] * scale2 - row_lse[r]) : 0.f;
                float ds = p * (d[n][e] - delta[r]);
                missing[r] += ds;
                s[n][e] = ds * scale;
            }
#pragma unroll
        for (int c = 0; c < KEYS / 16; c++) {
            const float *p = s[2 * c], *q = s[2 * c + 1];
            u32 piece[4] = {pack_scalars(p[0], p[1]), pack_scalars(p[2], p[3]), pack_scalars(q[0], q[1]), pack_scalars(q[2], q[3])};
            product<S, D>(sums, piece, kt, c * 16, 0);
        }
        __syncthreads();
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
        for (int n = 0; n < D / 8; n++)
            if (n * 8 < width)
                store2(d_queries + (u64)i * query_stride + head * width + n * 8 + pair, sums[n][2 * r], sums[n][2 * r + 1]);
    }
}
