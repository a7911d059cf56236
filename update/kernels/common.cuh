// Helpers: pairs of values, and a thread's index in the grid.
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

__device__ __forceinline__ u64 global_index() {
    return (u64)blockIdx.x * blockDim.x + threadIdx.x;
}

__device__ __forceinline__ u64 global_size() {
    return (u64)gridDim.x * blockDim.x;
}
