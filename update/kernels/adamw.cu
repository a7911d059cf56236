// AdamW (arXiv 1711.05101, algorithm 2) on weights in two halves, in the order of operations of the host's rule.

#include "common.cuh"
#include "masters.cuh"

// `scale` multiplies the gradient (clipping); keep = 1 - rate * decay; step_size = rate / (1 - beta1^t);
// root_correction = sqrt(1 - beta2^t); mix1 = 1 - beta1; mix2 = 1 - beta2.
extern "C" __global__ void adamw(bf16* rounded, i16* remainders, float* first, float* second, const float* gradient, u64 length,
                  float scale, float keep, float step_size, float root_correction, float mix1, float beta2, float mix2,
                  float epsilon) {
    for (u64 i = global_index(); i < length; i += global_size()) {
        float g = gradient[i] * scale, p = join(rounded[i], remainders[i]);
        float m = first[i] + (g - first[i]) * mix1, v = second[i] * beta2 + mix2 * g * g;
        first[i] = m;
        second[i] = v;
        p = p * keep - step_size * (m / (sqrtf(v) / root_correction + epsilon));
        split(p, rounded[i], remainders[i]);
    }
}
