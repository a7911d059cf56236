// Queries and keys: bias (Qwen2), an RMS norm over each head (Qwen3) and RoPE (arXiv 2104.09864) in one pass.
//
// One warp a head of a row. A lane holds neighboring pairs (i, i + width / 2), two pairs at a time, so that both halves
// are read in full lines; a head has at most 256 values, which are two turns of a warp.

#include "common.cuh"

#define UNROLL 2
#define NO_TENSOR 0xffffffffffffffffull

struct Pairs {
    float2 first[UNROLL], second[UNROLL];
};

// A tensor among the weights, or nothing.
__device__ __forceinline__ const scalar_t* tensor(const scalar_t* weights, u64 at) {
    return at == NO_TENSOR ? nullptr : weights + at;
}

// Reads a head's pairs, zeros beyond its width.
template <typename T> __device__ __forceinline__ Pairs read_pairs(const T* head, int half, int lane) {
    Pairs p;
    for (int t = 0; t < UNROLL; t++) {
        int i = t * 64 + lane * 2;
        bool inside = i < half;
        p.first[t] = inside ? load2(head + i) : make_float2(0.f, 0.f);
        p.second[t] = inside ? load2(head + half + i) : make_float2(0.f, 0.f);
    }
    return p;
}

__device__ __forceinline__ float dot(const Pairs& a, const Pairs& b) {
    float sum = 0.f;
    for (int t = 0; t < UNROLL; t++) {
        sum += a.first[t].x * b.first[t].x + a.first[t].y * b.first[t].y;
        sum += a.second[t].x * b.second[t].x + a.second[t].y * b.second[t].y;
    }
    return warp_sum(sum);
}

// Rows of `projection` are `stride` values: `heads` heads of `width`, then values that are only given the
// bias, in place. Bias and norm lie at offsets of the weights, or are NO_TENSOR. out [rows, heads * width];
// cosines and sines [positions, width / 2]; nodes: the node of each row. Without `rope` every row is taken
// for position 0, where the rotation is the identity.
extern "C" __global__ void qk_norm_rope(scalar_t* out, scalar_t* projection, const scalar_t* weights, u64 bias_at, u64 norm_at,
                                        const float* cosines, const float* sines, const int* positions,
                                        const int* nodes, int rows, int heads, int width, int stride, float epsilon,
                                        int rope) {
    const scalar_t *bias = tensor(weights, bias_at), *norm = tensor(weights, norm_at);
    int lane = threadIdx.x & 31, half = width / 2;
    int parts = bias ? stride / width : heads;
    u64 task = ((u64)blockIdx.x * blockDim.x + threadIdx.x) >> 5;
    int row = (int)(task / parts), head = (int)(task % parts);
    if (row >= rows) return;
    scalar_t* from = projection + (u64)row * stride + head * width;
    Pairs x = read_pairs(from, half, lane);
    if (bias) {
        Pairs b = read_pairs(bias + head * width, half, lane);
        for (int t = 0; t < UNROLL; t++) {
            int i = t * 64 + lane * 2;
            // The saved sum is rounded, so the rotated one is rounded too: the backward pass reads it again.
            x.first[t] = rounded(x.first[t].x + b.first[t].x, x.first[t].y + b.first[t].y);
            x.second[t] = rounded(x.second[t].x + b.second[t].x, x.second[t].y + b.second[t].y);
            if (i < half) {
                store2(from + i, x.first[t].x, x.first[t].y);
                store2(from + half + i, x.second[t].x, x.second[t].y);
            }
        }
        if (head >= heads) return;
    }
    float scale = norm ? rsqrtf(dot(x, x) / width + epsilon) : 1.f;
    scalar_t* to = out + ((u64)row * heads + head) * width;
    u64 angle = rope ? (u64)positions[nodes[row]] * half : 0;
    for (int t = 0; t < UNROLL; t++) {
        int i = t * 64 + lane * 2;
        if (i >= half) continue;
        float2 a = x.first[t], b = x.second[t];
        if (norm) {
            float2 u = load2(norm + i), v = load2(norm + half + i);
            a = make_float2(a.x * scale * u.x, a.y * scale * u.y);
            b = make_float2(b.x * scale * v.x, b.y * scale * v.y);
        }
        float2 c = load2(cosines + angle + i), s = load2(sines + angle + i);
        store2(to + i, a.x * c.x - b.x * s.x, a.y * c.y - b.y * s.y);
        store2(to + half + i, b.x * c.x + a.x * s.x, b.y * c.y + a.y * s.y);
    }
}

// Turns d_out [rows, heads * width] into the gradient of the heads of the projection, and writes each block's part of the
// gradient by the norm's weight: partials [blocks, width], left alone without a norm. Dynamic shared memory: one row of
// width floats for each warp of the block.
extern "C" __global__ void __launch_bounds__(256, 4)
    qk_norm_rope_backward(scalar_t* d_projection, float* partials, const float* d_out, const scalar_t* projection,
                          const scalar_t* weights, u64 norm_at, const float* cosines, const float* sines,
                          const int* positions, const int* nodes, int rows, int heads, int width, int stride,
                          float epsilon, int rope) {
    DYNAMIC_SHARED(float, sums);
    const scalar_t* norm = tensor(weights, norm_at);
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5, half = width / 2;
    Pairs weight, x, d_weight;
    for (int t = 0; t < UNROLL; t++) d_weight.first[t] = d_weight.second[t] = make_float2(0.f, 0.f);
    if (norm) weight = read_pairs(norm, half, lane);
    u64 tasks = (u64)rows * heads;
    for (u64 task = (u64)blockIdx.x * warps + warp; task < tasks; task += (u64)gridDim.x * warps) {
        int row = (int)(task / heads), head = (int)(task % heads);
        Pairs d = read_pairs(d_out + ((u64)row * heads + head) * width, half, lane);
        // Before the rotation, which waits for the node's position.
        if (norm) x = read_pairs(projection + (u64)row * stride + head * width, half, lane);
        u64 angle = rope ? (u64)positions[nodes[row]] * half : 0;
        for (int t = 0; t < UNROLL; t++) {
            int i = t * 64 + lane * 2;
            if (i >= half) continue;
            float2 a = d.first[t], b = d.second[t], c = load2(cosines + angle + i), s = load2(sines + angle + i);
            d.first[t] = make_float2(a.x * c.x + b.x * s.x, a.y * c.y + b.y * s.y);
            d.second[t] = make_float2(b.x * c.x - a.x * s.x, b.y * c.y - a.y * s.y);
        }
        if (norm) {
            float scale = rsqrtf(dot(x, x) / width + epsilon);
            for (int t = 0; t < UNROLL; t++) {
                d_weight.first[t].x += d.first[t].x * x.first[t].x * scale;
                d_weight.first[t].y += d.first[t].y * x.first[t].y * scale;
                d_weight.second[t].x += d.second[t].x * x.second[t].x * scale;
                d_weight.second[t].y += d.second[t].y * x.second[t].y * scale;
                d.first[t].x *= weight.first[t].x;
                d.first[t].y *= weight.first[t].y;
                d.second[t].x *= weight.second[t].x;
                d.second[t].y *= weight.second[t].y;
            }
            float back = dot(d, x) * scale * scale / width;
            for (int t = 0; t < UNROLL; t++) {
                d.first[t].x = scale * (d.first[t].x - x.first[t].x * back);
                d.first[t].y = scale * (d.first[t].y - x.first[t].y * back);
                d.second[t].x = scale * (d.second[t].x - x.second[t].x * back);
                d.second[t].y = scale * (d.second[t].y - x.second[t].y * back);
            }
        }
        scalar_t* to = d_projection + (u64)row * stride + head * width;
        for (int t = 0; t < UNROLL; t++) {
            int i = t * 64 + lane * 2;
            if (i >= half) continue;
            store2(to + i, d.first[t].x, d.first[t].y);
            store2(to + half + i, d.second[t].x, d.second[t].y);
        }
    }
    if (!norm) return;
    for (int t = 0; t < UNROLL; t++) {
        int i = t * 64 + lane * 2;
        if (i >= half) continue;
        float* own = sums + warp * width;
        own[i] = d_weight.first[t].x;
        own[i + 1] = d_weight.first[t].y;
        own[half + i] = d_weight.second[t].x;
        own[half + i + 1] = d_weight.second[t].y;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        float sum = 0.f;
        for (int w = 0; w < warps; w++) sum += sums[w * width + i];
        partials[(u64)blockIdx.x * width + i] = sum;
    }
}
