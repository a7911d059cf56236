// Plain gradient descent on weights in two halves: p = p * keep - rate * (g * scale), keep = 1 - rate * decay.

#include "common.cuh"
#include "masters.cuh"

extern "C" __global__ void sgd(bf16* rounded, i16* remainders, const float* gradient, u64 length, float scale, float keep, float rate) {
    for (u64 i = global_index(); i < length; i += global_size()) {
        float p = join(rounded[i], remainders[i]) * keep - rate * (gradient[i] * scale);
        split(p, rounded[i], remainders[i]);
    }
}
