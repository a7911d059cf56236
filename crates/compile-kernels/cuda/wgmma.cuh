// Hopper's wgmma: matrix products of a warpgroup on tiles of shared memory. Only for files named
// *_sm90a.cu, which are compiled for that architecture alone. Four warps, the first of them a multiple of
// four, issue each of these together:
//
//   wgmma_ss(d, a, b, accumulate)         d[64 x N] (+)= a bT, both K-major in shared memory; N is twice the length of d
//   wgmma_rs(d, a, b)                     d[64 x 128] += a b, a[4] in registers as mma_m16n8k16's, b MN-major in shared memory
//   wgmma_fence(), wgmma_commit()         before products whose registers something else wrote; after a group of products
//   wgmma_wait<N>(d...)                   until all groups but the last N are done, d being all that these wrote
//   fence_proxy_async()                   after the wait for copies to shared memory, before the barrier after which products read it
//
// d has mma_m16n8k16's layout, one group of eight columns after another; warp w has rows 16 w to 16 w + 15
// (PTX ISA, wgmma.mma_async). Products are asynchronous: until the wait, nothing may touch their registers
// or overwrite their tiles.
#pragma once

#include "device.cuh"

// A tile of ROWS rows consists of panels of 64 columns; each row of a panel is 128 bytes. The 128-byte
// swizzle permutes pieces of 16 bytes, so that eight rows of a column lie in different banks. A tile begins
// at a multiple of 1024 bytes.
template <int ROWS> __device__ __forceinline__ scalar_t* swizzled(scalar_t* tile, int row, int column) {
  return tile + column / 64 * ROWS * 64 + row * 64 + ((column / 8 ^ row) & 7) * 8;
}

// The descriptor of an operand: start address, leading and stride byte offsets, 128-byte swizzle. Adding an
// offset in units of 16 bytes never carries into the next field.
__device__ __forceinline__ u64 matrix_descriptor(const scalar_t* tile, int leading) {
  return (u64)(shared_address(tile) >> 4 & 0x3fff) | (u64)(leading >> 4) << 16 | (u64)(1024 >> 4) << 32 | 1ull << 62;
}

// Describes rows from `row` (a multiple of 8) on, summed over columns 16 step to 16 step + 15.
template <int ROWS> __device__ __forceinline__ u64 k_major(const scalar_t* tile, int row, int step) {
  return matrix_descriptor(tile, 16) + (u64)((step / 4 * ROWS * 64 + row * 64 + step % 4 * 16) / 8);
}

// Describes all columns, summed over rows 16 step to 16 step + 15.
template <int ROWS> __device__ __forceinline__ u64 mn_major(const scalar_t* tile, int step) {
  return matrix_descriptor(tile, ROWS * 128) + (u64)(step * 16 * 64 / 8);
}

#ifdef __CUDACC__

#define REGISTERS_32 \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24," \
  "%25,%26,%27,%28,%29,%30,%31"
#define REGISTERS_64 REGISTERS_32 "," \
  "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54," \
  "%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define EIGHT(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define OPERANDS_32(d) EIGHT(d, 0), EIGHT(d, 8), EIGHT(d, 16), EIGHT(d, 24)
#define OPERANDS_64(d) OPERANDS_32(d), EIGHT(d, 32), EIGHT(d, 40), EIGHT(d, 48), EIGHT(d, 56)

__device__ __forceinline__ void wgmma_ss(float (&d)[32], u64 a, u64 b, bool accumulate) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %34, 0;"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." SCALAR_PTX "." SCALAR_PTX " {" REGISTERS_32 "}, %32, %33, p, 1, 1, 0, 0;}"
      : OPERANDS_32(d)
      : "l"(a), "l"(b), "r"((int)accumulate));
}
__device__ __forceinline__ void wgmma_ss(float (&d)[64], u64 a, u64 b, bool accumulate) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %66, 0;"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." SCALAR_PTX "." SCALAR_PTX " {" REGISTERS_64 "}, %64, %65, p, 1, 1, 0, 0;}"
      : OPERANDS_64(d)
      : "l"(a), "l"(b), "r"((int)accumulate));
}
__device__ __forceinline__ void wgmma_rs(float (&d)[64], const u32 (&a)[4], u64 b) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, 1, 0;"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." SCALAR_PTX "." SCALAR_PTX " {" REGISTERS_64 "}, {%64, %65, %66, %67}, %68, p, 1, 1, 1;}"
      : OPERANDS_64(d)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// An empty asm that writes the sums, so that the compiler cannot read them before the wait.
__device__ __forceinline__ void wgmma_settle(float (&d)[32]) { asm volatile("" : OPERANDS_32(d)::"memory"); }
__device__ __forceinline__ void wgmma_settle(float (&d)[64]) { asm volatile("" : OPERANDS_64(d)::"memory"); }
template <int pending, class... Sums> __device__ __forceinline__ void wgmma_wait(Sums&... d) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
  (wgmma_settle(d), ...);
}
__device__ __forceinline__ void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

#endif
