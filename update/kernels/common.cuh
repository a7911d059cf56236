// Helpers: two values at a time, sums over a block, and a thread's index in the grid.
#pragma once

#include "device.cuh"

// Two neighboring values; the address is a multiple of two values.
__device__ __forceinline__ float2 load2(const bf16* from) {
    u32 both = *(const u32*)from;
    return make_float2(__uint_as_float(both << 16), __uint_as_float(both & 0xffff0000u));
}

__device__ __forceinline__ float2 load2(const float* from) {
    return *(const float2*)from;
}

__device__ __forceinline__ void store2(bf16* to, float first, float second) {
    *(u32*)to = pack_bf16(first, second);
}

__device__ __forceinline__ void store2(float* to, float first, float second) {
    *(float2*)to = make_float2(first, second);
}

// Both rounded to bf16.
__device__ __forceinline__ float2 rounded(float first, float second) {
    u32 both = pack_bf16(first, second);
    return make_float2(__uint_as_float(both << 16), __uint_as_float(both & 0xffff0000u));
}

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
