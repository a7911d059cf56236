// Attention's forward pass for heads of 128 on Hopper.

#include "attention_forward_128_sm90a.cuh"
#include "tree_mask.cuh"

// Arguments as attention_128's, `width` being 128. Grid (tiles of 128 rows, heads).
extern "C" __global__ void __launch_bounds__(256)
    attention_128_sm90a(scalar_t* out, float* lse, const scalar_t* queries, const scalar_t* keys, const scalar_t* values, const int* nodes,
                        const int* first_tiles, const int* ends, const int* tables, int rows, int tokens, int heads,
                        int key_heads, int width, int value_stride, float scale) {
    Tree<128> tree(nodes, first_tiles, ends, tables, rows, tokens, key_heads * width, value_stride);
    attention_forward_128_sm90a(out, lse, queries, keys, values, tree, heads, key_heads, scale);
}
