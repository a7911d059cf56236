// SGD on split master weights: p = p * keep - rate * (g * scale), keep = 1 - rate * decay. No fused multiply-add, so that
// the step is bit-identical to the CPU's.

#include "common.cuh"
#include "masters.cuh"

extern "C" __global__ void sgd(scalar_t* rounded, remainder_t* remainders, const float* gradient, u64 length, float scale, float keep, float rate, int narrow) {
    for (u64 i = global_index(); i < length; i += global_size()) {
        float step = __fmul_rn(rate, __fmul_rn(gradient[i], scale));
        float p = __fsub_rn(__fmul_rn(join(rounded[i], remainders[i]), keep), step);
        split(p, rounded[i], remainders[i], narrow);
    }
}
