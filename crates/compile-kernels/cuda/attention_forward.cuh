// Attention forward, for training and for prompts: FlashAttention-2 (arXiv 2307.08691) on 16-bit tensor cores.
//
// A block owns up to 64 queries of one head, a warp 16 of them, and loops over the tiles of keys that some of them see,
// prefetching the next one. Scores stay in registers; sums are f32. The bits of a row depend on its query and on the keys
// and values of the tiles that it sees: a tile of which it sees nothing changes no sum.
//
// Where the keys are and who sees them is up to `Known`, which a crate defines. Rows stand for nodes, which ascend; no node
// sees a later one. It has
//   MASKS                       true if earlier nodes may be hidden, too
//   first_row, last_row         the block's rows
//   key_stride, value_stride    from one key to the next, in values
//   node(row)                   the node of a row
//   first_tile()                the first TILE nodes of which a row sees some
//   visible<KEYS>(b, end, node) the first of the tiles of KEYS nodes from b on, up to `end`, of which `node` or a later one may see some
//   open<KEYS>(b, last)         true if no node of the tile is hidden from its later ones up to `last`
//   place<KEYS>(b)              where its keys are: `offset` values from the beginning, then rows `first` up to `rows`
// and, if it MASKS,
//   fetch<D, KEYS>(tile, b)     stores its facts about a tile's keys next to them
//   hidden<D>(tile, local, node)   true if these facts hide a key from a later node

#pragma once

#include "attention_tiles.cuh"

struct Place {
    i64 offset;
    int first, rows;
};

// s[n] = scores of 16 rows of `tile_q` from `row` on against the keys 8n .. 8n + 8 of a tile, in mma's layout.
template <int D, int KEYS>
__device__ __forceinline__ void score_keys(float (*s)[4], const scalar_t* tile_q, int row, const scalar_t* keys, int) {
#pragma unroll
    for (int c = 0; c < D; c += 16) {
        u32 piece[4];
        ldmatrix_x4(piece, left(tile_q, Row<D>::stride, row, c));
        product_transposed<D, KEYS>(s, piece, keys, 0, c);
    }
}

// In f32, which is for tests, without tensor cores.
template <int D, int KEYS>
__device__ __forceinline__ void score_keys(float (*s)[4], const float* tile_q, int row, const float* keys, int width) {
    int lane = threadIdx.x & 31;
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
        for (int e = 0; e < 4; e++) {
            const float* query = tile_q + (row + (lane >> 2) + (e >> 1) * 8) * Row<D>::stride;
            const float* key = keys + (n * 8 + (lane & 3) * 2 + (e & 1)) * Row<D>::stride;
            for (int c = 0; c < width; c += 4) {
                float4 a = load4(query + c), b = load4(key + c);
                s[n][e] += a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
            }
        }
}

// sums[n] += the weights s of 16 rows times columns 8n .. 8n + 8 of a tile's values.
template <int D, int KEYS>
__device__ __forceinline__ void add_values(float (*sums)[4], const float (*s)[4], const scalar_t* values) {
#pragma unroll
    for (int c = 0; c < KEYS / 16; c++) {
        const float *p = s[2 * c], *q = s[2 * c + 1];
        u32 piece[4] = {pack_scalars(p[0], p[1]), pack_scalars(p[2], p[3]), pack_scalars(q[0], q[1]), pack_scalars(q[2], q[3])};
        product<Row<D>::stride, D>(sums, piece, values, c * 16, 0);
    }
}

template <int D, int KEYS>
__device__ __forceinline__ void add_values(float (*sums)[4], const float (*s)[4], const float* values) {
    int lane = threadIdx.x & 31;
#pragma unroll
    for (int key = 0; key < KEYS; key++)
        for (int r = 0; r < 2; r++) {
            float weight = __shfl_sync(FULL_WARP, s[key / 8][2 * r + (key & 1)], (lane & 28) + key % 8 / 2);
            for (int n = 0; n < D / 8; n++) {
                float2 v = load2(values + key * Row<D>::stride + n * 8 + (lane & 3) * 2);
                sums[n][2 * r] += weight * v.x;
                sums[n][2 * r + 1] += weight * v.y;
            }
        }
}

// out [rows, heads * width] and, unless it is null, lse [rows, heads] (log-sum-exp of the scaled scores) from queries
// [rows, heads * width], and keys and values with the heads of a row after each other. Grid (tiles of rows, heads), 128 threads.
template <int D, int KEYS, class Known, typename T>
__device__ __forceinline__ void attention_forward(T* out, float* lse, const T* queries, const T* keys, const T* values, const Known& known,
                                                  int heads, int key_heads, int width, float scale) {
    constexpr int S = Row<D>::stride;
    static_assert((TILE + 4 * KEYS) * S * sizeof(T) <= SHARED_LIMIT, "tiles too large");
    DYNAMIC_SHARED(T, shared);
    T *tile_q = shared, *tile_k = tile_q + TILE * S, *tile_v = tile_k + 2 * KEYS * S;
    int head = blockIdx.y, key_head = head / (heads / key_heads);
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, row = warp * 16 + (lane >> 2), pair = (lane & 3) * 2;
    int first_row = known.first_row, last_row = known.last_row;
    int first_node = known.node(first_row), last_node = known.node(last_row);
    int own[2];
    for (int r = 0; r < 2; r++) own[r] = known.node(min(first_row + row + r * 8, last_row));
    int query_stride = heads * width;
    const T *k = keys + key_head * width, *v = values + key_head * width;
    float scale2 = scale * LOG2_E;
    int blocks = last_node / KEYS + 1;

    auto fetch = [&](int b, int stage) {
        Place place = known.template place<KEYS>(b);
        copy_tile<D, KEYS, 128>(tile_k + stage * KEYS * S, k + place.offset, place.first, place.rows, known.key_stride, width);
        copy_tile<D, KEYS, 128>(tile_v + stage * KEYS * S, v + place.offset, place.first, place.rows, known.value_stride, width);
        if constexpr (Known::MASKS) known.template fetch<D, KEYS>(tile_k + stage * KEYS * S, b);
    };

    copy_tile<D, TILE, 128>(tile_q, queries + head * width, first_row, last_row + 1, query_stride, width);
    int b = known.first_tile() * (TILE / KEYS);
    fetch(b, 0);
    copy_async_commit();
    float sums[D / 8][4], top[2] = {MASKED, MASKED}, total[2] = {0.f, 0.f};
    for (int n = 0; n < D / 8; n++)
        for (int e = 0; e < 4; e++) sums[n][e] = 0.f;

    for (int stage = 0; b < blocks; stage ^= 1) {
        int following = known.template visible<KEYS>(b + 1, blocks, first_node);
        if (following < blocks) fetch(following, stage ^ 1);
        copy_async_commit();
        copy_async_wait<1>();
        __syncthreads();
        const T *kt = tile_k + stage * KEYS * S, *vt = tile_v + stage * KEYS * S;

        float s[KEYS / 8][4];
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
            for (int e = 0; e < 4; e++) s[n][e] = 0.f;
        score_keys<D, KEYS>(s, tile_q, warp * 16, kt, width);
        bool all = b * KEYS + KEYS - 1 <= first_node && known.template open<KEYS>(b, last_node);
        if (!all) {
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++)
                for (int e = 0; e < 4; e++) {
                    int local = n * 8 + pair + (e & 1), node = own[e >> 1];
                    bool hidden = b * KEYS + local > node;
                    if constexpr (Known::MASKS) hidden = hidden || known.template hidden<D>(kt, local, node);
                    if (hidden) s[n][e] = MASKED;
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
        add_values<D, KEYS>(sums, s, vt);
        __syncthreads();
        b = following;
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
        for (int n = 0; n < D / 8; n++)
            if (n * 8 < width)
                store2(out + (u64)i * query_stride + head * width + n * 8 + pair, sums[n][2 * r] * inverse,
                       sums[n][2 * r + 1] * inverse);
    }
}
