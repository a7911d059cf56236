// RMS norm over rows (arXiv 1910.07467), with the residual addition of its gradient fused in.
//
// The residual stream and its gradient are f32: every layer adds to them, and 16 bits would round each sum. The forward pass
// has no addition to fuse: the GEMM before it adds to the stream in its epilogue. Widths are multiples of 4, and the weight
// begins at one, for loads of four values.

#include "common.cuh"

// Groups of four neighboring values of a row that a thread of rms_norm_backward holds.
#define UNROLL 2

__device__ __forceinline__ float dot(float4 a, float4 b) {
    return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
}

// out = x / sqrt(mean(x^2) + epsilon) * weight for each row; x [rows, width]. One block a row, whose second reading finds it in
// the L1 cache.
extern "C" __global__ void rms_norm(scalar_t* out, const float* x, const scalar_t* weight, int width, float epsilon) {
    SHARED_ARRAY(float, scratch, 33);
    const float* row = x + (u64)blockIdx.x * width;
    scalar_t* to = out + (u64)blockIdx.x * width;
    float squares = 0.f;
    for (int i = threadIdx.x * 4; i < width; i += blockDim.x * 4) squares += dot(load4(row + i), load4(row + i));
    float scale = rsqrtf(block_sum(squares, scratch) / width + epsilon);
    for (int i = threadIdx.x * 4; i < width; i += blockDim.x * 4) {
        float4 v = load4(row + i), w = load4(weight + i);
        store4(to + i, make_float4(v.x * scale * w.x, v.y * scale * w.y, v.z * scale * w.z, v.w * scale * w.w));
    }
}

// Adds to the sums that the gradient of a row needs: of x^2, and of d_out * weight * x.
__device__ __forceinline__ void add_products(float4 x, float4 d, float4 w, float2& sums) {
    sums.x += dot(x, x);
    sums.y += dot(make_float4(d.x * w.x, d.y * w.y, d.z * w.z, d.w * w.w), x);
}

// Factors of a row's values: 1 / sqrt(mean(x^2) + epsilon), and x's share in the row's gradient before that
// factor.
struct RowGrad {
    float scale, share;
};

__device__ __forceinline__ RowGrad row_grad(float2 sums, float inverse_width, float epsilon) {
    float scale = rsqrtf(sums.x * inverse_width + epsilon);
    return {scale, sums.y * scale * scale * inverse_width};
}

// Adds a value's gradients: by its weight to d_w, by x to d_x.
__device__ __forceinline__ void add_gradient(float x, float d, float w, RowGrad factors, float& d_w, float& d_x) {
    d_w += d * x * factors.scale;
    d_x += factors.scale * (d * w - x * factors.share);
}

__device__ __forceinline__ void add_gradients(float4 x, float4 d, float4 w, RowGrad factors, float4& d_w, float4& d_x) {
    add_gradient(x.x, d.x, w.x, factors, d_w.x, d_x.x);
    add_gradient(x.y, d.y, w.y, factors, d_w.y, d_x.y);
    add_gradient(x.z, d.z, w.z, factors, d_w.z, d_x.z);
    add_gradient(x.w, d.w, w.w, factors, d_w.w, d_x.w);
}

// Where a thread's group begins in a row.
__device__ __forceinline__ int column(int turn) {
    return (turn * blockDim.x + threadIdx.x) * 4;
}

// Adds the gradient by x to d_x, and writes each block's part of the gradient by the weight: partials [blocks, width], width at
// most UNROLL * 4 * blockDim.x. The mean square is recomputed from x, which is read anyway.
//
// A thread has the same columns of every row. It holds them in registers, so that x and d_out are read once and the gradient
// by the weight is summed without shared memory. d_x is read before the sums are known, so that its latency is not added.
// The bound keeps it to 64 registers: 1024 threads on a multiprocessor, whatever the block.
extern "C" __global__ void __launch_bounds__(1024)
    rms_norm_backward(float* d_x, float* partials, const float* d_out, const float* x, const scalar_t* weight, int rows,
                      int width, float epsilon) {
    SHARED_ARRAY(float2, scratch, 64);
    float inverse_width = 1.f / width;
    float4 sums[UNROLL];
    for (int t = 0; t < UNROLL; t++) sums[t] = make_float4(0.f, 0.f, 0.f, 0.f);
    for (int r = blockIdx.x, turn = 0; r < rows; r += gridDim.x, turn ^= 1) {
        u64 row = (u64)r * width;
        float4 v[UNROLL], d[UNROLL], w[UNROLL], to[UNROLL];
        float2 part = make_float2(0.f, 0.f);
        for (int t = 0; t < UNROLL; t++) {
            int i = column(t);
            v[t] = d[t] = w[t] = to[t] = make_float4(0.f, 0.f, 0.f, 0.f);
            if (i >= width) continue;
            v[t] = load4(x + row + i);
            d[t] = load4(d_out + row + i);
            w[t] = load4(weight + i);
            to[t] = load4(d_x + row + i);
        }
        for (int t = 0; t < UNROLL; t++) add_products(v[t], d[t], w[t], part);
        RowGrad factors = row_grad(block_sums(part, scratch + 32 * turn), inverse_width, epsilon);
        for (int t = 0; t < UNROLL; t++) {
            int i = column(t);
            add_gradients(v[t], d[t], w[t], factors, sums[t], to[t]);
            if (i < width) store4(d_x + row + i, to[t]);
        }
    }
    for (int t = 0; t < UNROLL; t++) {
        int i = column(t);
        if (i < width) store4(partials + (u64)blockIdx.x * width + i, sums[t]);
    }
}

// For rows of any width: they are read twice, and the parts are summed in global memory.
extern "C" __global__ void __launch_bounds__(1024)
    rms_norm_backward_wide(float* d_x, float* partials, const float* d_out, const float* x, const scalar_t* weight,
                           int rows, int width, float epsilon) {
    SHARED_ARRAY(float2, scratch, 64);
    float inverse_width = 1.f / width;
    float* sums = partials + (u64)blockIdx.x * width;
    for (int i = threadIdx.x * 4; i < width; i += blockDim.x * 4) store4(sums + i, make_float4(0.f, 0.f, 0.f, 0.f));
    for (int r = blockIdx.x, turn = 0; r < rows; r += gridDim.x, turn ^= 1) {
        u64 row = (u64)r * width;
        float2 part = make_float2(0.f, 0.f);
        for (int i = threadIdx.x * 4; i < width; i += blockDim.x * 4) {
            add_products(load4(x + row + i), load4(d_out + row + i), load4(weight + i), part);
        }
        RowGrad factors = row_grad(block_sums(part, scratch + 32 * turn), inverse_width, epsilon);
        for (int i = threadIdx.x * 4; i < width; i += blockDim.x * 4) {
            float4 sum = load4(sums + i), to = load4(d_x + row + i);
            add_gradients(load4(x + row + i), load4(d_out + row + i), load4(weight + i), factors, sum, to);
            store4(sums + i, sum);
            store4(d_x + row + i, to);
        }
    }
}
