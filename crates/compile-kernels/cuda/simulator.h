// CUDA C++ on the CPU: definitions with which a C++ compiler compiles a kernel's source.
//
// Every CUDA thread is a fiber with its own stack. All fibers of a block run on one operating-system
// thread, and switch only where CUDA threads synchronize (barriers, shuffles, tensor-core
// instructions). The caller (the crate `device`) spreads blocks over worker threads. Nothing here
// allocates through the C++ library or throws.
//
// Modeled: threadIdx and the like; shared memory (NaN until written); __syncthreads with a check of the call
// site; shuffles and votes; atomics; mma.m16n8k16 in bf16 and f16 with the hardware's fragment layouts; ldmatrix;
// cp.async, which copies at the wait (or, under some seeds, at once); wgmma with the hardware's descriptors,
// which computes at the wait (or at once). A mistake fails the launch with a message; it never ends the
// process. The seed selects the schedule: 0 runs warps in lockstep; others run one warp as far as it gets,
// with warps in a seeded order, and lanes in reverse under even seeds.
//
// Left out: the weak memory model, races between blocks, speed, TMA, warps that diverge and reconverge in
// parts (masks other than the full one), whether all four warps issue a wgmma.
#pragma once
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "context.h"

#define __global__
#define __device__
#define __host__
#define __constant__ static const
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(bytes) alignas(bytes)

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) int2 { int x, y; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline int2 make_int2(int x, int y) { return {x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

namespace simulator {

// A position in the kernel's source.
struct Site {
  const char* what;
  const char* file;
  int line;
};

// Input and result of a launch, shared by its workers. Mirrored in Rust.
struct Launch {
  uint32_t grid[3];
  uint32_t block[3];
  uint64_t shared_bytes;
  uint64_t shared_limit;
  uint64_t seed;
  uint64_t next_block;
  uint32_t failed;
  char message[512];
};
// The argument of an entry: one worker's part of a launch.
struct Call {
  Launch* launch;
  void* worker;
};

struct PendingCopy {
  void* to;
  const void* from;
  uint64_t group;
  int bytes;
  bool zero;
};
// One thread's part of a warpgroup product that was issued but not waited for.
struct PendingProduct {
  float* d;
  int columns;
  uint64_t a, b, group;
  // Rows g and g + 8 of the left operand, if it is in registers.
  float rows[2][16];
  bool f16, registers, accumulate, mn_major;
};
constexpr int MAX_PRODUCTS = 48;
struct Fiber {
  Context context;
  dim3 thread;
  int index = 0, lane = 0, warp = 0;
  bool finished = false;
  const Site* waiting = nullptr;
  char* stack = nullptr;
  PendingCopy* copies = nullptr;
  int copy_count = 0, copy_capacity = 0;
  uint64_t group = 0;
  PendingProduct products[MAX_PRODUCTS];
  int product_count = 0;
  uint64_t product_group = 0;
  // `fenced`: wgmma_fence has ordered registers before products. `unfenced_copies`: copies have landed that
  // no fence orders before the reads of products.
  bool fenced = false, unfenced_copies = false;
};
constexpr int SLOT_BYTES = 32;
struct Warp {
  int live = 0, arrived = 0;
  uint64_t generation = 0;
  const Site* site = nullptr;
  alignas(16) unsigned char slots[2][32][SLOT_BYTES];
};
// Shared memory declared in the kernel, identified by its source position.
struct StaticShared {
  const Site* site;
  uint32_t offset;
};
constexpr int MAX_STATIC = 32;
constexpr uint32_t STATIC_BYTES = 48 * 1024;
// Shared memory of a block on the largest GPUs, compute capability 9.0 and 10.0. Most kernels must do with
// less (Launch::shared_limit).
constexpr uint32_t MAX_SHARED = 227 * 1024;

struct Block {
  dim3 index, dim, grid;
  int threads = 0, live = 0, arrived = 0, current = 0;
  long stalled = 0;
  uint64_t generation = 0, seed = 0;
  const Site* site = nullptr;
  Fiber* fibers = nullptr;
  Warp* warps = nullptr;
  int *order = nullptr, *place = nullptr;
  int warp_count = 0;
  char* shared = nullptr;
  uint32_t shared_bytes = 0;
  StaticShared statics[MAX_STATIC];
  int static_count = 0;
  uint32_t static_used = 0, static_poisoned = 0;
  // Number of threads whose copies have landed without a fence_proxy_async after them.
  int unfenced = 0;
  Context scheduler;
  Launch* launch = nullptr;
  const char* kernel = nullptr;
  void (*body)(void* const*) = nullptr;
  void* const* arguments = nullptr;
};

extern __thread Block* block;
extern __thread Fiber* fiber;

[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));
void block_barrier(const Site& site);
void warp_barrier(const Site& site);
void* static_shared(const Site& site, size_t bytes);
void* dynamic_shared();
bool in_shared(const void* pointer, size_t bytes);
void copy_async(const Site& site, void* to, const void* from, int bytes, bool copy);
void copy_async_commit();
void copy_async_wait(int pending);
void run(Call* call, const char* kernel, void (*body)(void* const*), void* const* arguments);

#define SIMULATOR_SITE(name)                                        \
  ([]() -> const simulator::Site& {                                 \
    static const simulator::Site site = {name, __FILE__, __LINE__}; \
    return site;                                                    \
  }())

// Warp-wide operations post a value, synchronize, and read the others' values. Two sets of slots suffice,
// since no lane can be two operations ahead.
template <class T> inline unsigned post(const Site& site, const T& value) {
  static_assert(sizeof(T) <= SLOT_BYTES, "a lane posts at most 32 bytes");
  Warp& warp = block->warps[fiber->warp];
  unsigned parity = warp.generation & 1;
  memcpy(warp.slots[parity][fiber->lane], &value, sizeof(T));
  warp_barrier(site);
  return parity;
}
template <class T> inline T peek(unsigned parity, int lane) {
  T value;
  memcpy(&value, block->warps[fiber->warp].slots[parity][lane], sizeof(T));
  return value;
}
inline void need_full(const Site& site, unsigned mask) {
  if (mask != 0xffffffffu) fail("%s at %s:%d: only the full mask is simulated", site.what, site.file, site.line);
}
template <class T> inline T shuffle_xor(const Site& site, unsigned mask, T value, int lane_mask, int width = 32) {
  need_full(site, mask);
  unsigned parity = post(site, value);
  int lane = fiber->lane, other = lane ^ lane_mask;
  return peek<T>(parity, (other & ~(width - 1)) == (lane & ~(width - 1)) ? other : lane);
}
template <class T> inline T shuffle(const Site& site, unsigned mask, T value, int from, int width = 32) {
  need_full(site, mask);
  unsigned parity = post(site, value);
  return peek<T>(parity, (fiber->lane & ~(width - 1)) | (from & (width - 1)));
}
template <class T> inline T shuffle_down(const Site& site, unsigned mask, T value, unsigned by, int width = 32) {
  need_full(site, mask);
  unsigned parity = post(site, value);
  int lane = fiber->lane, within = lane & (width - 1);
  return peek<T>(parity, within + (int)by < width ? lane + (int)by : lane);
}
template <class T> inline T shuffle_up(const Site& site, unsigned mask, T value, unsigned by, int width = 32) {
  need_full(site, mask);
  unsigned parity = post(site, value);
  int lane = fiber->lane, within = lane & (width - 1);
  return peek<T>(parity, within >= (int)by ? lane - (int)by : lane);
}
inline unsigned ballot(const Site& site, unsigned mask, int predicate) {
  need_full(site, mask);
  unsigned parity = post(site, predicate), votes = 0;
  for (int lane = 0; lane < 32; lane++) {
    int vote = lane < block->threads - fiber->warp * 32 && !block->fibers[fiber->warp * 32 + lane].finished
                   ? peek<int>(parity, lane)
                   : 0;
    votes |= (unsigned)(vote != 0) << lane;
  }
  return votes;
}
void need_warp(const Site& site);
inline float float_of_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}
inline float float_of_f16(uint16_t bits) {
  uint32_t sign = (uint32_t)(bits & 0x8000) << 16, exponent = bits >> 10 & 31, fraction = bits & 0x3ff;
  if (exponent == 31) return float_of_bits(sign | 0x7f800000 | fraction << 13);
  if (exponent) return float_of_bits(sign | (exponent + 112) << 23 | fraction << 13);
  return sign ? -(fraction * 0x1p-24f) : fraction * 0x1p-24f;
}
inline uint16_t f16_of_float(float value) {
  uint32_t bits, sign, magnitude;
  memcpy(&bits, &value, 4);
  sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return 0x7fff;
  // Half way from 65504 to the next.
  if (magnitude >= 0x477ff000) return (uint16_t)(sign | 0x7c00);
  // Below 2^-14 values are multiples of 2^-24.
  if (magnitude < 0x38800000) return (uint16_t)(sign | (uint32_t)rintf(fabsf(value) * 0x1p24f));
  return (uint16_t)(sign | (((magnitude + 0xfff + (magnitude >> 13 & 1)) >> 13) - (112 << 10)));
}
// One of the two 16-bit values in a register.
inline float half_of(bool f16, uint32_t pair, int high) {
  return f16 ? float_of_f16((uint16_t)(high ? pair >> 16 : pair)) : float_of_bits(high ? pair & 0xffff0000u : pair << 16);
}
void mma(const Site& site, bool f16, float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1);
void load_matrices(const Site& site, uint32_t r[4], const void* row, bool transposed);
void product(const Site& site, PendingProduct mine);
void wait_products(int pending);
void fence_proxy();
template <int N> inline void wgmma_ss(const Site& site, bool f16, float (&d)[N], uint64_t a, uint64_t b, bool accumulate) {
  PendingProduct mine = {};
  mine.f16 = f16, mine.d = d, mine.columns = 2 * N, mine.a = a, mine.b = b, mine.accumulate = accumulate;
  product(site, mine);
}
template <int N> inline void wgmma_rs(const Site& site, bool f16, float (&d)[N], const uint32_t (&a)[4], uint64_t b) {
  struct Fragment {
    uint32_t a[4];
  } fragment = {{a[0], a[1], a[2], a[3]}};
  PendingProduct mine = {};
  mine.f16 = f16, mine.d = d, mine.columns = 2 * N, mine.b = b, mine.registers = mine.accumulate = mine.mn_major = true;
  unsigned parity = post(site, fragment);
  for (int quad = 0; quad < 4; quad++) {
    Fragment of = peek<Fragment>(parity, (fiber->lane & ~3) + quad);
    for (int part = 0; part < 4; part++)
      for (int high = 0; high < 2; high++)
        mine.rows[part & 1][2 * quad + 8 * (part >> 1) + high] = half_of(f16, of.a[part], high);
  }
  product(site, mine);
}

// A kernel's arguments are addresses of parameter values, as in cuLaunchKernel.
template <size_t... I> struct Indices {};
template <size_t N, size_t... I> struct MakeIndices : MakeIndices<N - 1, N - 1, I...> {};
template <size_t... I> struct MakeIndices<0, I...> { using type = Indices<I...>; };
template <class T> struct Plain { using type = T; };
template <class T> struct Plain<const T> { using type = T; };
template <class... A, size_t... I> inline void apply(void (*kernel)(A...), void* const* arguments, Indices<I...>) {
  kernel(*(typename Plain<A>::type*)arguments[I]...);
}
template <class... A> inline void apply(void (*kernel)(A...), void* const* arguments) {
  apply(kernel, arguments, typename MakeIndices<sizeof...(A)>::type{});
}

}  // namespace simulator

#define SIMULATOR_ENTRY(entry, kernel)                                                              \
  extern "C" __attribute__((visibility("default"))) void entry(void* call, void* const* arguments) { \
    simulator::run((simulator::Call*)call, #kernel,                                                 \
                   [](void* const* values) { simulator::apply(kernel, values); }, arguments);       \
  }

#define threadIdx (simulator::fiber->thread)
#define blockIdx (simulator::block->index)
#define blockDim (simulator::block->dim)
#define gridDim (simulator::block->grid)
#define __syncthreads() simulator::block_barrier(SIMULATOR_SITE("__syncthreads"))
#define __syncwarp(...) simulator::warp_barrier(SIMULATOR_SITE("__syncwarp"))
#define __shfl_xor_sync(...) simulator::shuffle_xor(SIMULATOR_SITE("__shfl_xor_sync"), __VA_ARGS__)
#define __shfl_sync(...) simulator::shuffle(SIMULATOR_SITE("__shfl_sync"), __VA_ARGS__)
#define __shfl_down_sync(...) simulator::shuffle_down(SIMULATOR_SITE("__shfl_down_sync"), __VA_ARGS__)
#define __shfl_up_sync(...) simulator::shuffle_up(SIMULATOR_SITE("__shfl_up_sync"), __VA_ARGS__)
#define __ballot_sync(...) simulator::ballot(SIMULATOR_SITE("__ballot_sync"), __VA_ARGS__)
#define __any_sync(...) (simulator::ballot(SIMULATOR_SITE("__any_sync"), __VA_ARGS__) != 0)
#ifdef SCALAR_F16
#define SIMULATOR_F16 true
#else
#define SIMULATOR_F16 false
#endif
#define mma_m16n8k16(...) simulator::mma(SIMULATOR_SITE("mma_m16n8k16"), SIMULATOR_F16, __VA_ARGS__)
#define ldmatrix_x4(r, row) simulator::load_matrices(SIMULATOR_SITE("ldmatrix_x4"), r, row, false)
#define ldmatrix_x4_transposed(r, row) simulator::load_matrices(SIMULATOR_SITE("ldmatrix_x4_transposed"), r, row, true)
#define copy_async_16(to, from, copy) simulator::copy_async(SIMULATOR_SITE("copy_async_16"), to, from, 16, copy)
#define copy_async_4(to, from, copy) simulator::copy_async(SIMULATOR_SITE("copy_async_4"), to, from, 4, copy)
#define wgmma_ss(...) simulator::wgmma_ss(SIMULATOR_SITE("wgmma_ss"), SIMULATOR_F16, __VA_ARGS__)
#define wgmma_rs(...) simulator::wgmma_rs(SIMULATOR_SITE("wgmma_rs"), SIMULATOR_F16, __VA_ARGS__)
#define wgmma_fence() (simulator::fiber->fenced = true)
#define wgmma_commit() (simulator::fiber->product_group++)
#define SHARED_ARRAY(type, name, length) \
  type(&name)[length] = *(type(*)[length])simulator::static_shared(SIMULATOR_SITE(#name), sizeof(type) * (length))
#define DYNAMIC_SHARED(type, name) type* name = (type*)simulator::dynamic_shared()

inline uint32_t shared_address(const void* pointer) {
  return (uint32_t)((const char*)pointer - (const char*)simulator::dynamic_shared());
}
template <int pending, class... Sums> inline void wgmma_wait(Sums&...) { simulator::wait_products(pending); }
inline void fence_proxy_async() { simulator::fence_proxy(); }
inline void copy_async_commit() { simulator::copy_async_commit(); }
template <int pending> inline void copy_async_wait() { simulator::copy_async_wait(pending); }

inline float __uint_as_float(uint32_t bits) { float value; memcpy(&value, &bits, 4); return value; }
inline uint32_t __float_as_uint(float value) { uint32_t bits; memcpy(&bits, &value, 4); return bits; }
inline float __int_as_float(int bits) { return __uint_as_float((uint32_t)bits); }
inline int __float_as_int(float value) { return (int)__float_as_uint(value); }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float exp2_approximate(float x) { return exp2f(x); }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
inline double __dmul_rn(double x, double y) { return x * y; }
inline double __dadd_rn(double x, double y) { return x + y; }
inline uint64_t __umul64hi(uint64_t x, uint64_t y) { return (uint64_t)(((unsigned __int128)x * y) >> 64); }
inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline unsigned __umulhi(unsigned x, unsigned y) { return (unsigned)(((uint64_t)x * y) >> 32); }
template <class T> inline T __ldg(const T* pointer) { return *pointer; }
template <class T> inline T min(T a, T b) { return b < a ? b : a; }
template <class T> inline T max(T a, T b) { return a < b ? b : a; }
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

template <class T> inline T atomicAdd(T* pointer, T value) { return __atomic_fetch_add(pointer, value, __ATOMIC_SEQ_CST); }
inline float atomicAdd(float* pointer, float value) {
  uint32_t* bits = (uint32_t*)pointer;
  uint32_t old = __atomic_load_n(bits, __ATOMIC_SEQ_CST);
  while (!__atomic_compare_exchange_n(bits, &old, __float_as_uint(__uint_as_float(old) + value), false, __ATOMIC_SEQ_CST,
                                      __ATOMIC_SEQ_CST)) {
  }
  return __uint_as_float(old);
}
template <class T> inline T atomicMax(T* pointer, T value) {
  T old = __atomic_load_n(pointer, __ATOMIC_SEQ_CST);
  while (old < value && !__atomic_compare_exchange_n(pointer, &old, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
  }
  return old;
}
template <class T> inline T atomicMin(T* pointer, T value) {
  T old = __atomic_load_n(pointer, __ATOMIC_SEQ_CST);
  while (value < old && !__atomic_compare_exchange_n(pointer, &old, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
  }
  return old;
}
template <class T> inline T atomicCAS(T* pointer, T expected, T value) {
  __atomic_compare_exchange_n(pointer, &expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  return expected;
}
