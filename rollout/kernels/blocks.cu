// Copies of KV-cache blocks: where branches part, each goes on in a copy of the block that they share.

#include "device.cuh"

// cache [sides, blocks, size] in units of 16 bytes, a side being the keys or the values of a layer; copies [count, 2]: the
// block that is read and the block that is written. No block is written that is read or written by another copy. Grid
// (count, sides), 256 threads.
extern "C" __global__ void __launch_bounds__(256) copy_blocks(u64* cache, const i32* copies, u64 blocks, u64 size) {
    uint4* side = (uint4*)cache + blockIdx.y * blocks * size;
    const uint4* from = side + copies[2 * blockIdx.x] * size;
    uint4* to = side + copies[2 * blockIdx.x + 1] * size;
    for (u64 i = threadIdx.x; i < size; i += blockDim.x) to[i] = from[i];
}
