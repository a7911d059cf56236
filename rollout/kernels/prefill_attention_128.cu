// Attention of prompts for heads of up to 128 values.

#include "prefill_attention.cuh"

// Arguments as prefill_attention_64's.
extern "C" __global__ void __launch_bounds__(128)
    prefill_attention_128(scalar_t* out, const scalar_t* queries, const scalar_t* keys, const scalar_t* values, const int* tiles, const int* table, int columns,
                         int shift, int heads, int key_heads, int width, float scale) {
    Paged paged(tiles, table, columns, shift, key_heads * width);
    attention_forward<128, 64>(out, nullptr, queries, keys, values, paged, heads, key_heads, width, scale);
}
