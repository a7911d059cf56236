// SwiGLU (arXiv 2002.05202): out = silu(gate) * up, each row of gate_up being gate and up of `width` values each.
//
// A block a row, and eight neighboring columns a thread and turn: loads of 16 bytes, and no division. Widths are multiples of 8.

#include "common.cuh"

// silu = gate * s, s the sigmoid of the gate. Shared by both kernels, so that the recomputed output is bit-identical.
__device__ __forceinline__ float silu(float gate, float& s) {
    s = 1.f / (1.f + expf(-gate));
    return gate * s;
}

extern "C" __global__ void swiglu(scalar_t* out, const scalar_t* gate_up, int width) {
    const scalar_t* from = gate_up + (u64)blockIdx.x * 2 * width;
    for (int i = threadIdx.x * 8; i < width; i += blockDim.x * 8) {
        float4 g[2], u[2], o[2];
        load8(from + i, g);
        load8(from + width + i, u);
        for (int h = 0; h < 2; h++) {
            float s;
            o[h] = make_float4(silu(g[h].x, s) * u[h].x, silu(g[h].y, s) * u[h].y, silu(g[h].z, s) * u[h].z,
                               silu(g[h].w, s) * u[h].w);
        }
        store8(out + (u64)blockIdx.x * width + i, o);
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
extern "C" __global__ void swiglu_backward(scalar_t* gate_up, scalar_t* out, const float* d_out, int width) {
    scalar_t* row = gate_up + (u64)blockIdx.x * 2 * width;
    for (int i = threadIdx.x * 8; i < width; i += blockDim.x * 8) {
        const float* from = d_out + (u64)blockIdx.x * width + i;
        float4 g[2], u[2], o[2], d[2] = {load4(from), load4(from + 4)};
        load8(row + i, g);
        load8(row + width + i, u);
        for (int h = 0; h < 2; h++) {
            float4 gate = g[h], up = u[h];
            swiglu_gradients(gate.x, up.x, d[h].x, g[h].x, u[h].x, o[h].x);
            swiglu_gradients(gate.y, up.y, d[h].y, g[h].y, u[h].y, o[h].y);
            swiglu_gradients(gate.z, up.z, d[h].z, g[h].z, u[h].z, o[h].z);
            swiglu_gradients(gate.w, up.w, d[h].w, g[h].w, u[h].w, o[h].w);
        }
        store8(row + i, g);
        store8(row + width + i, u);
        store8(out + (u64)blockIdx.x * width + i, o);
    }
}
