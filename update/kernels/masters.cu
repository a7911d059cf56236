// f32 master weights split into the rounded bf16 that the passes read and a signed 16-bit remainder; exact:
// bits = (rounded << 16) + remainder. Four bytes a weight instead of six, and no bf16 copy to refresh.

#include "common.cuh"
#include "masters.cuh"

extern "C" __global__ void split_masters(bf16* rounded, i16* remainders, const float* masters, u64 length) {
    for (u64 i = global_index(); i < length; i += global_size()) split(masters[i], rounded[i], remainders[i]);
}

extern "C" __global__ void merge_masters(float* masters, const bf16* rounded, const i16* remainders, u64 length) {
    for (u64 i = global_index(); i < length; i += global_size()) masters[i] = join(rounded[i], remainders[i]);
}
