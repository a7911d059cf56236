// Sums over the words of a tensor, in blocks of 256 threads: integers, so any order gives the same.
#pragma once

#include "device.cuh"

// `bits(i)` are the bits of value i. The last word is filled up with zeros. Each block adds to two sums of its own.
template <typename Bits>
__device__ __forceinline__ void add_words(u64* sums, u64 length, u64 place, Bits bits) {
    SHARED_ARRAY(u64, partial, 512);
    u64 words = 0, placed = 0, count = (length + 3) / 4, stride = (u64)gridDim.x * 256;
    for (u64 at = (u64)blockIdx.x * 256 + threadIdx.x; at < count; at += stride) {
        u64 word = 0;
        for (int i = 0; i < 4; i++)
            if (4 * at + i < length) word |= bits(4 * at + i) << (16 * i);
        words += word;
        placed += (place + at) * word;
    }
    partial[threadIdx.x] = words;
    partial[256 + threadIdx.x] = placed;
    __syncthreads();
    for (int half = 128; half > 0; half /= 2) {
        if ((int)threadIdx.x < half) {
            partial[threadIdx.x] += partial[threadIdx.x + half];
            partial[256 + threadIdx.x] += partial[256 + threadIdx.x + half];
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        sums[2 * blockIdx.x] += partial[0];
        sums[2 * blockIdx.x + 1] += partial[256];
    }
}
