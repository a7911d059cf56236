// The term that the softmax gradient subtracts from every entry of its row: the sum over the head of d_out * out.

#include "common.cuh"

// deltas [rows, heads] from d_out and out, both [rows, heads * width]; one warp a head of a row.
extern "C" __global__ void attention_deltas(float* deltas, const scalar_t* d_out, const scalar_t* out, u64 count, int width) {
    u64 head = global_index() >> 5;
    if (head >= count) return;
    float sum = 0.f;
    for (int i = (threadIdx.x & 31) * 2; i < width; i += 64) {
        float2 a = load2(d_out + head * width + i), b = load2(out + head * width + i);
        sum += a.x * b.x + a.y * b.y;
    }
    sum = warp_sum(sum);
    if ((threadIdx.x & 31) == 0) deltas[head] = sum;
}
