// RMS norm over rows (arXiv 1910.07467), with the residual addition of its gradient fused in.
//
// The residual stream and its gradient are f32: every layer adds to them, and bf16 would round each sum. The forward pass
// has no addition to fuse: the GEMM before it adds to the stream in its epilogue.

#include "common.cuh"

// out = x / sqrt(mean(x^2) + epsilon) * weight for each row; x [rows, width]. One block a row.
extern "C" __global__ void rms_norm(bf16* out, const float* x, const bf16* weight, int width, float epsilon) {
    SHARED_ARRAY(float, scratch, 33);
    const float* row = x + (u64)blockIdx.x * width;
    bf16* to = out + (u64)blockIdx.x * width;
    float squares = 0.f;
    for (int i = threadIdx.x * 2; i < width; i += blockDim.x * 2) {
        float2 v = load2(row + i);
        squares += v.x * v.x + v.y * v.y;
    }
    float scale = rsqrtf(block_sum(squares, scratch) / width + epsilon);
    for (int i = threadIdx.x * 2; i < width; i += blockDim.x * 2) {
        float2 v = load2(row + i), w = load2(weight + i);
        store2(to + i, v.x * scale * w.x, v.y * scale * w.y);
    }
}

// Adds the gradient by x to d_x, and writes each block's part of the gradient by the weight: partials [blocks, width].
// The mean square is recomputed from x, which is read anyway. Dynamic shared memory: width floats.
extern "C" __global__ void rms_norm_backward(float* d_x, float* partials, const float* d_out, const float* x, const bf16* weight,
                              int rows, int width, float epsilon) {
    SHARED_ARRAY(float, scratch, 33);
    DYNAMIC_SHARED(float, sums);
    for (int i = threadIdx.x; i < width; i += blockDim.x) sums[i] = 0.f;
    for (int r = blockIdx.x; r < rows; r += gridDim.x) {
        const float* row = x + (u64)r * width;
        const float* grad = d_out + (u64)r * width;
        float* to = d_x + (u64)r * width;
        float squares = 0.f, product = 0.f;
        for (int i = threadIdx.x; i < width; i += blockDim.x) {
            float v = row[i];
            squares += v * v;
            product += grad[i] * to_float(weight[i]) * v;
        }
        squares = block_sum(squares, scratch);
        product = block_sum(product, scratch);
        float scale = rsqrtf(squares / width + epsilon), back = product * scale * scale / width;
        for (int i = threadIdx.x; i < width; i += blockDim.x) {
            float v = row[i], d = grad[i];
            sums[i] += d * v * scale;
            to[i] += scale * (d * to_float(weight[i]) - v * back);
        }
    }
    for (int i = threadIdx.x; i < width; i += blockDim.x) partials[(u64)blockIdx.x * width + i] = sums[i];
}
