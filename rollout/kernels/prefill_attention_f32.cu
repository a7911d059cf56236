// Attention of prompts in f32, for tests.

#include "prefill_attention.cuh"

// Arguments as prefill_attention_64's, but a block has 16 keys or more.
extern "C" __global__ void __launch_bounds__(128)
    prefill_attention_64_f32(float* out, const float* queries, const float* keys, const float* values, const int* tiles, const int* table, int columns,
                         int shift, int heads, int key_heads, int width, float scale) {
    Paged paged(tiles, table, columns, shift, key_heads * width);
    attention_forward<64, 16>(out, nullptr, queries, keys, values, paged, heads, key_heads, width, scale);
}

extern "C" __global__ void __launch_bounds__(128)
    prefill_attention_128_f32(float* out, const float* queries, const float* keys, const float* values, const int* tiles, const int* table, int columns,
                         int shift, int heads, int key_heads, int width, float scale) {
    Paged paged(tiles, table, columns, shift, key_heads * width);
    attention_forward<128, 16>(out, nullptr, queries, keys, values, paged, heads, key_heads, width, scale);
}
