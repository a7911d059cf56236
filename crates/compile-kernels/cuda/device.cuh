// The kernel language: the header that every .cu file of this project includes.
//
// On the device it is CUDA C++ with inline PTX and needs no NVIDIA header. On the host the simulator
// (simulator.h) defines the same names. Beyond plain CUDA, a kernel may use:
//
//   extern "C" __global__ void __launch_bounds__(128) name(scalar_t* out, const float* x, int n)   a kernel
//   scalar_t                              bf16 or f16: a file with a kernel over it is compiled for both, and a launch takes
//                                         the kernel of its arguments
//   remainder_t                           completes a scalar_t to an f32: i16 for bf16, the f32 itself for f16
//   SHARED_ARRAY(float, partial, 33);     shared memory of a fixed size (plain __shared__ does not compile on the host)
//   DYNAMIC_SHARED(bf16, tile);           the launch's shared memory, aligned to 1024 bytes
//   copy_async_16(to, from, copy)         cp.async of 16 bytes to shared memory; zeros where copy is false; copy_async_4 too
//   copy_async_commit(), copy_async_wait<N>()
//   mma_m16n8k16(d, a, b0, b1)            d[4] += a[4] b[2], scalar_t in, f32 out
//   ldmatrix_x4(r, row), ldmatrix_x4_transposed(r, row)
//   wgmma.cuh                             Hopper's matrix products, for files named *_sm90a.cu alone
//   load2, store2, load4, store4, load8, store8   neighboring values of 16 bits or float, at an address that is a multiple of as many
//   to_float, to_scalar, pack_scalars, warp_sum, warp_max, block_sum, block_max
//
// Reductions have a fixed order, so that a kernel gives the same bits in every run.
// Atomics on floats would not.
#pragma once

typedef unsigned char u8;
typedef short i16;
typedef int i32;
typedef unsigned int u32;

#ifdef SCALAR_F16
#define SCALAR_PTX "f16"
#else
#define SCALAR_PTX "bf16"
#endif

#ifdef __CUDACC__

typedef long long i64;
typedef unsigned long long u64;
#define SHARED_ARRAY(type, name, length) __shared__ __align__(16) type name[length]
#define DYNAMIC_SHARED(type, name)                              \
  extern __shared__ __align__(1024) unsigned char dynamic_shared_bytes[]; \
  type* name = (type*)dynamic_shared_bytes

__device__ __forceinline__ u32 shared_address(const void* pointer) { return (u32)__cvta_generic_to_shared(pointer); }
__device__ __forceinline__ void mma_m16n8k16(float d[4], const u32 a[4], u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32." SCALAR_PTX "." SCALAR_PTX ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void ldmatrix_x4(u32 r[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
__device__ __forceinline__ void ldmatrix_x4_transposed(u32 r[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
__device__ __forceinline__ void copy_async_16(void* to, const void* from, bool copy) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(copy ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void copy_async_4(void* to, const void* from, bool copy) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)), "l"(from), "r"(copy ? 4 : 0)
               : "memory");
}
__device__ __forceinline__ void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int pending> __device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}
// 2^x to about 2 units in the last place; results below 2^-126 become zero.
__device__ __forceinline__ float exp2_approximate(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

#else

#include <simulator.h>
typedef int64_t i64;
typedef uint64_t u64;

#endif

// A brain float: the upper half of an f32.
struct bf16 {
  unsigned short bits;
};
// An IEEE half: 11 bits of significand, at most 65504.
struct f16 {
  unsigned short bits;
};
__device__ __forceinline__ float to_float(bf16 value) { return __uint_as_float((u32)value.bits << 16); }
__device__ __forceinline__ float to_float(f16 value) {
#ifdef __CUDACC__
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value.bits));
  return wide;
#else
  return simulator::float_of_f16(value.bits);
#endif
}
// Rounds to nearest, ties to even.
__device__ __forceinline__ bf16 to_bf16(float value) {
  bf16 rounded;
#ifdef __CUDACC__
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(rounded.bits) : "f"(value));
#else
  u32 bits = __float_as_uint(value);
  rounded.bits = value != value ? 0x7fff : (unsigned short)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
#endif
  return rounded;
}
// Rounds to nearest, ties to even; from 65520 on to infinity.
__device__ __forceinline__ f16 to_f16(float value) {
  f16 rounded;
#ifdef __CUDACC__
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(rounded.bits) : "f"(value));
#else
  rounded.bits = simulator::f16_of_float(value);
#endif
  return rounded;
}
// Packs two values into a register in the type of the pointer, `low` at the lower address.
__device__ __forceinline__ u32 pack_as(const bf16*, float low, float high) {
#ifdef __CUDACC__
  u32 pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return (u32)to_bf16(low).bits | (u32)to_bf16(high).bits << 16;
#endif
}
__device__ __forceinline__ u32 pack_as(const f16*, float low, float high) {
#ifdef __CUDACC__
  u32 pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return (u32)to_f16(low).bits | (u32)to_f16(high).bits << 16;
#endif
}
__device__ __forceinline__ float2 unpack_as(const bf16*, u32 both) {
  return make_float2(__uint_as_float(both << 16), __uint_as_float(both & 0xffff0000u));
}
__device__ __forceinline__ float2 unpack_as(const f16*, u32 both) {
  f16 low = {(unsigned short)both}, high = {(unsigned short)(both >> 16)};
  return make_float2(to_float(low), to_float(high));
}

#ifdef SCALAR_F16
typedef f16 scalar_t;
typedef float remainder_t;
__device__ __forceinline__ scalar_t to_scalar(float value) { return to_f16(value); }
#else
typedef bf16 scalar_t;
typedef i16 remainder_t;
__device__ __forceinline__ scalar_t to_scalar(float value) { return to_bf16(value); }
#endif
__device__ __forceinline__ u32 pack_scalars(float low, float high) { return pack_as((const scalar_t*)0, low, high); }

// Loads two adjacent values; the address is a multiple of two values.
template <typename T> __device__ __forceinline__ float2 load2(const T* from) { return unpack_as(from, *(const u32*)from); }

__device__ __forceinline__ float2 load2(const float* from) {
  return *(const float2*)from;
}

template <typename T> __device__ __forceinline__ void store2(T* to, float first, float second) {
  *(u32*)to = pack_as(to, first, second);
}

__device__ __forceinline__ void store2(float* to, float first, float second) {
  *(float2*)to = make_float2(first, second);
}

// Rounds both values to the type of the pointer, or to scalar_t.
template <typename T> __device__ __forceinline__ float2 rounded_as(const T* type, float2 v) {
  return unpack_as(type, pack_as(type, v.x, v.y));
}
__device__ __forceinline__ float2 rounded(float first, float second) {
  return rounded_as((const scalar_t*)0, make_float2(first, second));
}

// Loads four adjacent values; the address is a multiple of four values.
template <typename T> __device__ __forceinline__ float4 load4(const T* from) {
  uint2 both = *(const uint2*)from;
  float2 a = unpack_as(from, both.x), b = unpack_as(from, both.y);
  return make_float4(a.x, a.y, b.x, b.y);
}

__device__ __forceinline__ float4 load4(const float* from) {
  return *(const float4*)from;
}

template <typename T> __device__ __forceinline__ void store4(T* to, float4 v) {
  *(uint2*)to = make_uint2(pack_as(to, v.x, v.y), pack_as(to, v.z, v.w));
}

__device__ __forceinline__ void store4(float* to, float4 v) {
  *(float4*)to = v;
}

// Loads eight adjacent values at once, as two fours; the address is a multiple of eight values.
template <typename T> __device__ __forceinline__ void load8(const T* from, float4 (&v)[2]) {
  uint4 all = *(const uint4*)from;
  float2 a = unpack_as(from, all.x), b = unpack_as(from, all.y), c = unpack_as(from, all.z), d = unpack_as(from, all.w);
  v[0] = make_float4(a.x, a.y, b.x, b.y);
  v[1] = make_float4(c.x, c.y, d.x, d.y);
}

template <typename T> __device__ __forceinline__ void store8(T* to, const float4 (&v)[2]) {
  *(uint4*)to = make_uint4(pack_as(to, v[0].x, v[0].y), pack_as(to, v[0].z, v[0].w), pack_as(to, v[1].x, v[1].y),
                           pack_as(to, v[1].z, v[1].w));
}

__device__ __forceinline__ void load8(const float* from, float4 (&v)[2]) {
  v[0] = load4(from);
  v[1] = load4(from + 4);
}
__device__ __forceinline__ void store8(float* to, const float4 (&v)[2]) {
  store4(to, v[0]);
  store4(to + 4, v[1]);
}

#define FULL_WARP 0xffffffffu

// The sum over the warp, in every lane.
__device__ __forceinline__ float warp_sum(float value) {
  for (int offset = 16; offset; offset >>= 1) value += __shfl_xor_sync(FULL_WARP, value, offset);
  return value;
}
// The maximum over the warp, in every lane.
__device__ __forceinline__ float warp_max(float value) {
  for (int offset = 16; offset; offset >>= 1) value = fmaxf(value, __shfl_xor_sync(FULL_WARP, value, offset));
  return value;
}
// The sum over a one-dimensional block of whole warps, in every thread. `scratch`: 33 floats of shared memory.
__device__ __forceinline__ float block_sum(float value, float* scratch) {
  int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, warps = blockDim.x >> 5;
  value = warp_sum(value);
  __syncthreads();
  if (lane == 0) scratch[warp] = value;
  __syncthreads();
  if (warp == 0) {
    value = warp_sum(lane < warps ? scratch[lane] : 0.f);
    if (lane == 0) scratch[32] = value;
  }
  __syncthreads();
  return scratch[32];
}
// The maximum over a one-dimensional block of whole warps, in every thread. `scratch`: 33 floats of shared memory.
__device__ __forceinline__ float block_max(float value, float* scratch) {
  int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, warps = blockDim.x >> 5;
  value = warp_max(value);
  __syncthreads();
  if (lane == 0) scratch[warp] = value;
  __syncthreads();
  if (warp == 0) {
    value = warp_max(lane < warps ? scratch[lane] : -3.4e38f);
    if (lane == 0) scratch[32] = value;
  }
  __syncthreads();
  return scratch[32];
}
