// Attention of decoding in f32, for tests.

#include "decode_attention.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    decode_attention_64_f32(float* partials, const float* queries, const float* keys, const float* values, const int* tasks,
                             const int* count, const int* positions, int heads, int kv_heads, int width, int size, int chunks,
                             int first_row, int end_row, float scale) {
  decode_attention<float, 64>(partials, queries, keys, values, tasks, count, positions, heads, kv_heads, width, size, chunks,
                            first_row, end_row, scale);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    decode_attention_128_f32(float* partials, const float* queries, const float* keys, const float* values, const int* tasks,
                             const int* count, const int* positions, int heads, int kv_heads, int width, int size, int chunks,
                             int first_row, int end_row, float scale) {
  decode_attention<float, 128>(partials, queries, keys, values, tasks, count, positions, heads, kv_heads, width, size, chunks,
                            first_row, end_row, scale);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    merge_partials_f32(float* out, const float* partials, const int* positions, int heads, int width, int size, int chunks,
                      int first_row, int rows) {
  merge_chunks(out, partials, positions, heads, width, size, chunks, first_row, rows);
}
