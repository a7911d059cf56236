// f32 master weights split into the rounded values that the passes read and a remainder; exact. Of bf16 it has 16 bits:
// bits = (rounded << 16) + remainder, four bytes a weight instead of six. Of f16 it is the master itself, because f16 has not the
// range of f32. `narrow`: the checkpoint publishes bf16, so f16 is rounded from that, as rollout reads it.

#include "common.cuh"
#include "masters.cuh"

extern "C" __global__ void split_masters(scalar_t* rounded, remainder_t* remainders, const float* masters, u64 length, int narrow) {
    for (u64 i = global_index(); i < length; i += global_size()) split(masters[i], rounded[i], remainders[i], narrow);
}

extern "C" __global__ void merge_masters(float* masters, const scalar_t* rounded, const remainder_t* remainders, u64 length) {
    for (u64 i = global_index(); i < length; i += global_size()) masters[i] = join(rounded[i], remainders[i]);
}
