// The embedding lookup and its gradient.
//
// The rows of a token are added in the order of the nodes by the one block that owns the token: no atomics, and the same
// bits in every run.

#include "common.cuh"

// out[node] = table[ids[node]]; table [vocabulary, width], out [nodes, width]. One block a node.
extern "C" __global__ void embed(float* out, const scalar_t* table, const int* ids, int width) {
    const scalar_t* from = table + (u64)ids[blockIdx.x] * width;
    float* to = out + (u64)blockIdx.x * width;
    for (int i = threadIdx.x; i < width; i += blockDim.x) to[i] = to_float(from[i]);
}

// gradient[tokens[b]] += the sum of d_out over nodes[starts[b] .. starts[b + 1]]; one block a distinct token.
extern "C" __global__ void embed_backward(float* gradient, const float* d_out, const int* tokens, const int* starts,
                           const int* nodes, int width) {
    float* to = gradient + (u64)tokens[blockIdx.x] * width;
    int first = starts[blockIdx.x], last = starts[blockIdx.x + 1];
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        float sum = 0.f;
        for (int n = first; n < last; n++) sum += d_out[(u64)nodes[n] * width + i];
        to[i] += sum;
    }
}
