// AdamW (arXiv 1711.05101, algorithm 2) on split master weights, in the CPU optimizer's order of operations.
//
// Intrinsics prevent fused multiply-add, so that the step is bit-identical to the CPU's. Division and square root are
// correctly rounded on both.

#include "common.cuh"
#include "masters.cuh"

// `scale` multiplies the gradient (clipping); keep = 1 - rate * decay; step_size = rate / (1 - beta1^t);
// root_correction = sqrt(1 - beta2^t); mix1 = 1 - beta1; mix2 = 1 - beta2.
extern "C" __global__ void adamw(scalar_t* rounded, remainder_t* remainders, float* first, float* second, const float* gradient, u64 length,
                  float scale, float keep, float step_size, float root_correction, float mix1, float beta2, float mix2,
                  float epsilon, int narrow) {
    for (u64 i = global_index(); i < length; i += global_size()) {
        float g = __fmul_rn(gradient[i], scale), p = join(rounded[i], remainders[i]);
        float m = __fadd_rn(first[i], __fmul_rn(__fsub_rn(g, first[i]), mix1));
        float v = __fadd_rn(__fmul_rn(second[i], beta2), __fmul_rn(__fmul_rn(mix2, g), g));
        first[i] = m;
        second[i] = v;
        float root = __fadd_rn(__fdiv_rn(__fsqrt_rn(v), root_correction), epsilon);
        p = __fsub_rn(__fmul_rn(p, keep), __fmul_rn(step_size, __fdiv_rn(m, root)));
        split(p, rounded[i], remainders[i], narrow);
    }
}
