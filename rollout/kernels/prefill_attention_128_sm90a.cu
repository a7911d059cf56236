// Attention of prompts for heads of 128 values on Hopper.

#include "attention_forward_128_sm90a.cuh"
#include "prefill_attention.cuh"

// Arguments as prefill_attention_64's, but `width` is 128, a block has 128 keys or more, and tiles have up to 128 rows.
extern "C" __global__ void __launch_bounds__(256)
    prefill_attention_128_sm90a(scalar_t* out, const scalar_t* queries, const scalar_t* keys, const scalar_t* values, const int* tiles, const int* table, int columns,
                         int shift, int heads, int key_heads, int width, float scale) {
    Paged paged(tiles, table, columns, shift, key_heads * width);
    attention_forward_128_sm90a(out, nullptr, queries, keys, values, paged, heads, key_heads, scale);
}
