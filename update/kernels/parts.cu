// The sum of parts' gradients in a fixed order, and checksums of values on their way between cards.

#include "common.cuh"

#define THREADS 256
// log2 of the most ranks.
#define LEVELS 16

// values[0][i]: the sum of values[r][i] over the ranks as a balanced tree of neighbors. values [ranks, length], ranks a power of
// two. The sum of 2^k ranks waits in sums[k] for its neighbor.
extern "C" __global__ void add_tree(float* values, int ranks, u64 length) {
    for (u64 i = global_index(); i < length; i += global_size()) {
        float sums[LEVELS + 1], sum = 0.f;
        for (int r = 0; r < ranks; r++) {
            sum = values[(u64)r * length + i];
            int level = 0;
            for (; r >> level & 1; level++) sum = __fadd_rn(sums[level], sum);
            sums[level] = sum;
        }
        values[i] = sum;
    }
}

// sums[i] += values[i].
extern "C" __global__ void add_values(float* sums, const float* values, u64 length) {
    for (u64 i = global_index(); i < length; i += global_size()) sums[i] = __fadd_rn(sums[i], values[i]);
}

// This thread's part of a checksum: words[i] * (2 (first + i) + 1).
template <class Word> __device__ __forceinline__ u64 checksum(const Word* words, u64 length, u64 first) {
    u64 sum = 0;
    for (u64 i = global_index(); i < length; i += global_size()) sum += (u64)words[i] * (2 * (first + i) + 1);
    return sum;
}

// sum += the parts [THREADS] of a block.
__device__ __forceinline__ void add_block(u64* sum, u64* parts) {
    __syncthreads();
    for (unsigned half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) atomicAdd(sum, parts[0]);
}

// sums[r] += the checksum of values[r], which begin with value number `first` of the sequence: Checksum of ranks/mod.rs.
// values [ranks, length], grid (blocks, ranks). Integers wrap, so the order of additions does not matter.
extern "C" __global__ void __launch_bounds__(THREADS) add_checksums(u64* sums, const float* values, u64 length, u64 first) {
    SHARED_ARRAY(u64, parts, THREADS);
    parts[threadIdx.x] = checksum((const unsigned*)values + (u64)blockIdx.y * length, length, first);
    add_block(&sums[blockIdx.y], parts);
}

// sum += the checksum of the bits of values [length].
extern "C" __global__ void __launch_bounds__(THREADS) add_weight_checksum(u64* sum, const scalar_t* values, u64 length) {
    SHARED_ARRAY(u64, parts, THREADS);
    parts[threadIdx.x] = checksum((const unsigned short*)values, length, 0);
    add_block(sum, parts);
}
