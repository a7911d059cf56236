// Attention for heads 136 to 256 wide. One file per width, so that a model compiles only the width it uses.

#include "attention_backward.cuh"
#include "tree_mask.cuh"

extern "C" __global__ void __launch_bounds__(128)
    attention_256(scalar_t* out, float* lse, const scalar_t* queries, const scalar_t* keys, const scalar_t* values, const int* nodes,
                  const int* first_tiles, const int* ends, const int* tables, int rows, int tokens, int heads, int key_heads,
                  int width, int value_stride, float scale) {
    Tree<TILE> tree(nodes, first_tiles, ends, tables, rows, tokens, key_heads * width, value_stride);
    attention_forward<256, 32>(out, lse, queries, keys, values, tree, heads, key_heads, width, scale);
}

extern "C" __global__ void __launch_bounds__(128)
    attention_keys_256(float* d_keys, scalar_t* d_values, const scalar_t* d_out, const scalar_t* queries, const scalar_t* keys,
                       const scalar_t* values, const float* lse, const float* deltas, const int* nodes, const int* ends,
                       const int* tables, int rows, int tokens, int heads, int key_heads, int width, int value_stride,
                       float scale) {
    attention_keys<256, 32, 32>(d_keys, d_values, d_out, queries, keys, values, lse, deltas, nodes, ends, tables, rows,
                                tokens, heads, key_heads, width, value_stride, scale);
}

extern "C" __global__ void __launch_bounds__(128)
    attention_queries_256(float* d_queries, const scalar_t* d_out, const scalar_t* queries, const scalar_t* keys, const scalar_t* values,
                          const float* lse, float* deltas, const int* nodes, const int* first_tiles, const int* ends,
                          const int* tables, int rows, int tokens, int heads, int key_heads, int width, int value_stride,
                          float scale) {
    attention_queries<256, 16>(d_queries, d_out, queries, keys, values, lse, deltas, nodes, first_tiles, ends, tables, rows,
                               tokens, heads, key_heads, width, value_stride, scale);
}
