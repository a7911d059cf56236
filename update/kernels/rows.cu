// Gather and scatter-add of the scored rows, for 16-bit activations and for the f32 residual stream, and a cast from f32 to
// 16 bits for GEMM operands.

#include "common.cuh"

template <typename T> __device__ __forceinline__ void gather(T* out, const T* x, const int* nodes, int width) {
    const T* from = x + (u64)nodes[blockIdx.x] * width;
    T* to = out + (u64)blockIdx.x * width;
    for (int i = threadIdx.x * 2; i < width; i += blockDim.x * 2) {
        float2 both = load2(from + i);
        store2(to + i, both.x, both.y);
    }
}

template <typename T> __device__ __forceinline__ void scatter_add(T* x, const T* rows, const int* nodes, int width) {
    const T* from = rows + (u64)blockIdx.x * width;
    T* to = x + (u64)nodes[blockIdx.x] * width;
    for (int i = threadIdx.x * 2; i < width; i += blockDim.x * 2) {
        float2 a = load2(to + i), b = load2(from + i);
        store2(to + i, a.x + b.x, a.y + b.y);
    }
}

// out[r] = x[nodes[r]] over rows of `width` values, an even number. One block a row.
extern "C" __global__ void gather_rows(scalar_t* out, const scalar_t* x, const int* nodes, int width) {
    gather(out, x, nodes, width);
}

extern "C" __global__ void gather_stream(float* out, const float* x, const int* nodes, int width) {
    gather(out, x, nodes, width);
}

// x[nodes[r]] += rows[r]; no node occurs twice, so no two blocks meet. One block a row.
extern "C" __global__ void scatter_add_rows(scalar_t* x, const scalar_t* rows, const int* nodes, int width) {
    scatter_add(x, rows, nodes, width);
}

extern "C" __global__ void scatter_add_stream(float* x, const float* rows, const int* nodes, int width) {
    scatter_add(x, rows, nodes, width);
}

// out = x rounded, two neighboring values a thread.
extern "C" __global__ void round_values(scalar_t* out, const float* x, u64 pairs) {
    for (u64 p = global_index(); p < pairs; p += global_size()) {
        float2 both = load2(x + 2 * p);
        store2(out + 2 * p, both.x, both.y);
    }
}
