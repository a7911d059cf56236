// Copies, conversions and fills: one value a thread.

#include "common.cuh"

extern "C" __global__ void fill_zero(u32* to, u64 words) {
    for (u64 i = global_index(); i < words; i += global_size()) to[i] = 0;
}

extern "C" __global__ void copy_words(u32* to, const u32* from, u64 words) {
    for (u64 i = global_index(); i < words; i += global_size()) to[i] = from[i];
}

extern "C" __global__ void add_values(bf16* to, const bf16* from, u64 length) {
    for (u64 i = global_index(); i < length; i += global_size()) to[i] = to_bf16(to_float(to[i]) + to_float(from[i]));
}

extern "C" __global__ void round_values(bf16* to, const float* from, u64 length) {
    for (u64 i = global_index(); i < length; i += global_size()) to[i] = to_bf16(from[i]);
}
