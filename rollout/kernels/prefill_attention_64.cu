// Attention of prompts for heads of up to 64 values.

#include "prefill_attention.cuh"

// out and queries [rows, heads * width]; keys and values [blocks, 2^shift, key_heads, width]; tiles and table: see Paged. A
// block has 64 keys or more. Grid (tiles, heads).
extern "C" __global__ void __launch_bounds__(128)
    prefill_attention_64(scalar_t* out, const scalar_t* queries, const scalar_t* keys, const scalar_t* values, const int* tiles, const int* table, int columns,
                         int shift, int heads, int key_heads, int width, float scale) {
    Paged paged(tiles, table, columns, shift, key_heads * width);
    attention_forward<64, 64>(out, nullptr, queries, keys, values, paged, heads, key_heads, width, scale);
}
