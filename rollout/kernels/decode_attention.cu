// Attention of decoding in 16 bits.

#include "decode_attention.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    decode_attention_64(float* partials, const scalar_t* queries, const scalar_t* keys, const scalar_t* values, const int* tasks,
                        const int* count, const int* positions, int heads, int kv_heads, int width, int size, int chunks,
                        int first_row, int end_row, float scale) {
  decode_attention<scalar_t, 64>(partials, queries, keys, values, tasks, count, positions, heads, kv_heads, width, size, chunks,
                            first_row, end_row, scale);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    decode_attention_128(float* partials, const scalar_t* queries, const scalar_t* keys, const scalar_t* values, const int* tasks,
                        const int* count, const int* positions, int heads, int kv_heads, int width, int size, int chunks,
                        int first_row, int end_row, float scale) {
  decode_attention<scalar_t, 128>(partials, queries, keys, values, tasks, count, positions, heads, kv_heads, width, size, chunks,
                            first_row, end_row, scale);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    merge_partials(scalar_t* out, const float* partials, const int* positions, int heads, int width, int size, int chunks,
                      int first_row, int rows) {
  merge_chunks(out, partials, positions, heads, width, size, chunks, first_row, rows);
}
