// The checksum of weights that another process handed over (`crates/policy/src/hand_over.rs`).

#include "hand_over.cuh"

// Adds to sums [blocks, 2] the words of four values, and each word times its place; the first word is at `place`.
extern "C" __global__ void __launch_bounds__(256) sum_words(u64* sums, const scalar_t* values, u64 length, u64 place) {
    add_words(sums, length, place, [&](u64 i) { return (u64)values[i].bits; });
}
