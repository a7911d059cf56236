// Helpers: two and four values at a time, sums over a block, and a thread's index in the grid.
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

// Four neighboring values; the address is a multiple of four values.
__device__ __forceinline__ float4 load4(const bf16* from) {
    uint2 both = *(const uint2*)from;
    return make_float4(__uint_as_float(both.x << 16), __uint_as_float(both.x & 0xffff0000u),
                       __uint_as_float(both.y << 16), __uint_as_float(both.y & 0xffff0000u));
}

__device__ __forceinline__ float4 load4(const float* from) {
    return *(const float4*)from;
}

__device__ __forceinline__ void store4(bf16* to, float4 v) {
    *(uint2*)to = make_uint2(pack_bf16(v.x, v.y), pack_bf16(v.z, v.w));
}

__device__ __forceinline__ void store4(float* to, float4 v) {
    *(float4*)to = v;
}

// Eight neighboring values as two fours, in one load; the address is a multiple of eight values.
__device__ __forceinline__ void load8(const bf16* from, float4 (&v)[2]) {
    uint4 all = *(const uint4*)from;
    v[0] = make_float4(__uint_as_float(all.x << 16), __uint_as_float(all.x & 0xffff0000u), __uint_as_float(all.y << 16),
                       __uint_as_float(all.y & 0xffff0000u));
    v[1] = make_float4(__uint_as_float(all.z << 16), __uint_as_float(all.z & 0xffff0000u), __uint_as_float(all.w << 16),
                       __uint_as_float(all.w & 0xffff0000u));
}

__device__ __forceinline__ void store8(bf16* to, const float4 (&v)[2]) {
    *(uint4*)to = make_uint4(pack_bf16(v[0].x, v[0].y), pack_bf16(v[0].z, v[0].w), pack_bf16(v[1].x, v[1].y),
                             pack_bf16(v[1].z, v[1].w));
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
