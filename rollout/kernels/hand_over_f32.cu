// hand_over.cu for an engine in f32, the simulator's, which takes bf16 weights and widens them.

#include "hand_over.cuh"

// The lower half is 0, unless the value is no bf16.
extern "C" __global__ void __launch_bounds__(256) sum_words_f32(u64* sums, const float* values, u64 length, u64 place) {
    add_words(sums, length, place, [&](u64 i) {
        u32 bits = __float_as_uint(values[i]);
        return (u64)((bits >> 16) ^ (bits & 0xffff));
    });
}

extern "C" __global__ void __launch_bounds__(256) widen_bf16(float* to, const bf16* from, u64 length) {
    u64 stride = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < length; i += stride) to[i] = to_float(from[i]);
}
