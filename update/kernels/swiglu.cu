// SwiGLU (arXiv 2002.05202): out = silu(gate) * up, each row of gate_up being gate and up of `width` values each.

#include "common.cuh"

// silu = gate * s, s the sigmoid of the gate. Shared by both kernels, so that the recomputed output is bit-identical.
__device__ __forceinline__ float silu(float gate, float& s) {
    s = 1.f / (1.f + expf(-gate));
    return gate * s;
}

// Two neighboring columns a thread; `pairs` is rows * width / 2.
extern "C" __global__ void swiglu(bf16* out, const bf16* gate_up, u64 pairs, int width) {
    for (u64 p = global_index(); p < pairs; p += global_size()) {
        u64 row = p * 2 / width, column = p * 2 % width;
        const bf16* from = gate_up + row * 2 * width + column;
        float2 g = load2(from), u = load2(from + width);
        float s;
        store2(out + row * width + column, silu(g.x, s) * u.x, silu(g.y, s) * u.y);
    }
}

// d_gate = d * up * s * (1 + gate * (1 - s)), d_up = d * gate * s.
__device__ __forceinline__ void swiglu_gradients(float gate, float up, float d, float& d_gate, float& d_up, float& out) {
    float s, product = silu(gate, s);
    d_gate = d * up * (s + product * (1.f - s));
    d_up = d * product;
    out = product * up;
}

// The gradient in place of gate_up; out is computed again on the way.
extern "C" __global__ void swiglu_backward(bf16* gate_up, bf16* out, const float* d_out, u64 pairs, int width) {
    for (u64 p = global_index(); p < pairs; p += global_size()) {
        u64 row = p * 2 / width, column = p * 2 % width;
        bf16* at = gate_up + row * 2 * width + column;
        float2 g = load2(at), u = load2(at + width), d = load2(d_out + row * width + column), dg, du, o;
        swiglu_gradients(g.x, u.x, d.x, dg.x, du.x, o.x);
        swiglu_gradients(g.y, u.y, d.y, dg.y, du.y, o.y);
        store2(at, dg.x, dg.y);
        store2(at + width, du.x, du.y);
        store2(out + row * width + column, o.x, o.y);
    }
}
