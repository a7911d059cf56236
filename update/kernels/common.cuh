// Helpers: sums over a block, and a thread's index in the grid.
#pragma once

#include "device.cuh"

// The sums of both values over a one-dimensional block of whole warps, in every thread, with a single barrier. `scratch`: 32
// pairs of shared memory. A warp may still read them when another has gone on, so the next call takes other ones; the call
// after that may take these again.
__device__ __forceinline__ float2 block_sums(float2 value, float2* scratch) {
    int lane = threadIdx.x & 31, warps = blockDim.x >> 5;
    value = make_float2(warp_sum(value.x), warp_sum(value.y));
    if (lane == 0) scratch[threadIdx.x >> 5] = value;
    __syncthreads();
    value = lane < warps ? scratch[lane] : make_float2(0.f, 0.f);
    return make_float2(warp_sum(value.x), warp_sum(value.y));
}

__device__ __forceinline__ u64 global_index() {
    return (u64)blockIdx.x * blockDim.x + threadIdx.x;
}

__device__ __forceinline__ u64 global_size() {
    return (u64)gridDim.x * blockDim.x;
}
