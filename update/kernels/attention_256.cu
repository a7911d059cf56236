// Attention for heads 136 to 256 wide. One file per width, so that a model compiles only the width it uses.

#include "attention_backward.cuh"
#include "attention_forward.cuh"

extern "C" __global__ void __launch_bounds__(128)
    attention_256(bf16* out, float* lse, const bf16* queries, const bf16* keys, const bf16* values, const int* nodes,
                  const int* first_tiles, const int* ends, const int* tables, int rows, int tokens, int heads, int key_heads,
                  int width, int value_stride, float scale) {
    attention_forward<256, 32>(out, lse, queries, keys, values, nodes, first_tiles, ends, tables, rows, tokens, heads,
                               key_heads, width, value_stride, scale);
}

extern "C" __global__ void __launch_bounds__(128)
    attention_keys_256(float* d_keys, bf16* d_values, const bf16* d_out, const bf16* queries, const bf16* keys,
                       const bf16* values, const float* lse, const float* deltas, const int* nodes, const int* ends,
                       const int* tables, int rows, int tokens, int heads, int key_heads, int width, int value_stride,
                       float scale) {
    attention_keys<256, 32, 32>(d_keys, d_values, d_out, queries, keys, values, lse, deltas, nodes, ends, tables, rows,
                                tokens, heads, key_heads, width, value_stride, scale);
}

extern "C" __global__ void __launch_bounds__(128)
    attention_queries_256(float* d_queries, const bf16* d_out, const bf16* queries, const bf16* keys, const bf16* values,
                          const float* lse, float* deltas, const int* nodes, const int* first_tiles, const int* ends,
                          const int* tables, int rows, int tokens, int heads, int key_heads, int width, int value_stride,
                          float scale) {
    attention_queries<256, 16>(d_queries, d_out, queries, keys, values, lse, deltas, nodes, first_tiles, ends, tables, rows,
                               tokens, heads, key_heads, width, value_stride, scale);
}
