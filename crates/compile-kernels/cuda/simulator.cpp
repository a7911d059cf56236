// The simulator's scheduler: fibers, barriers, shared memory, tensor-core instructions. See simulator.h.
#include "simulator.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

SIMULATOR_SWITCH_CODE

namespace simulator {

__thread Block* block = nullptr;
__thread Fiber* fiber = nullptr;

namespace {

constexpr size_t STACK_BYTES = 64 * 1024;
constexpr uint64_t CANARY = 0x5afe57ac4b0770ffull;

// Buffers that a worker reuses between launches: stacks, fibers, shared memory.
struct Worker {
  Block block;
  int capacity = 0;
  char* stacks = nullptr;
};

// Ends the block: returns to the scheduler and leaves all fibers where they are.
[[noreturn]] void abandon() {
  switch_context(fiber->context, block->scheduler);
  abort();
}

void enter(int place) {
  block->current = place;
  fiber = &block->fibers[block->order[place]];
}

void describe(char* out, size_t bytes, const Fiber& of) {
  if (of.waiting)
    snprintf(out, bytes, "thread (%u,%u,%u) waits in %s at %s:%d", of.thread.x, of.thread.y, of.thread.z,
             of.waiting->what, of.waiting->file, of.waiting->line);
  else
    snprintf(out, bytes, "thread (%u,%u,%u) waits nowhere", of.thread.x, of.thread.y, of.thread.z);
}

[[noreturn]] void deadlock() {
  char mine[160], other[160] = "";
  describe(mine, sizeof mine, *fiber);
  for (int i = 0; i < block->threads; i++) {
    const Fiber& candidate = block->fibers[i];
    if (!candidate.finished && candidate.waiting != fiber->waiting) {
      describe(other, sizeof other, candidate);
      break;
    }
  }
  fail("deadlock: %s%s%s", mine, *other ? ", " : "", other);
}

// Switches to another fiber: within a warp-wide operation under seeds above 0, to a lane of the same warp;
// else to the next in order.
void yield(bool in_warp) {
  Block& b = *block;
  Fiber* me = fiber;
  int next = b.current;
  if (++b.stalled > 8L * b.threads + 64) deadlock();
  if (in_warp && b.seed) {
    int count = b.threads - me->warp * 32 < 32 ? b.threads - me->warp * 32 : 32;
    int first = b.place[me->warp * 32] < b.place[me->warp * 32 + count - 1] ? b.place[me->warp * 32]
                                                                              : b.place[me->warp * 32 + count - 1];
    do next = next + 1 == first + count ? first : next + 1;
    while (b.fibers[b.order[next]].finished);
  } else {
    do next = next + 1 == b.threads ? 0 : next + 1;
    while (b.fibers[b.order[next]].finished);
  }
  if (&b.fibers[b.order[next]] == me) return;
  enter(next);
  switch_context(me->context, fiber->context);
}

void finish() {
  Block& b = *block;
  Fiber* me = fiber;
  if (*(uint64_t*)me->stack != CANARY) fail("a thread's stack of %zu bytes overflowed", STACK_BYTES);
  if (me->copy_count) fail("a thread returned with a copy_async that nobody waited for");
  if (me->product_count) fail("a thread returned with a wgmma that nobody waited for");
  if (b.arrived) {
    char other[160] = "";
    for (int i = 0; i < b.threads; i++)
      if (!b.fibers[i].finished && b.fibers[i].waiting == b.site) {
        describe(other, sizeof other, b.fibers[i]);
        break;
      }
    fail("a thread returned while others wait: %s", other);
  }
  me->finished = true;
  b.stalled = 0;
  b.live--;
  Warp& warp = b.warps[me->warp];
  warp.live--;
  // Fills only the current slots, since slower lanes may still be reading the previous ones.
  memset(warp.slots[warp.generation & 1][me->lane], 0xFF, SLOT_BYTES);
  if (warp.live && warp.arrived == warp.live) {
    warp.arrived = 0;
    warp.generation++;
  }
  if (!b.live) abandon();
  int next = b.current;
  do next = next + 1 == b.threads ? 0 : next + 1;
  while (b.fibers[b.order[next]].finished);
  enter(next);
  switch_context(me->context, fiber->context);
  abort();
}

void entry() {
  block->body(block->arguments);
  finish();
}

uint64_t next_random(uint64_t& state) {
  state += 0x9E3779B97F4A7C15ull;
  uint64_t z = state;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

// Chooses the order in which fibers run: the seed shuffles warps, and even seeds reverse lanes.
void arrange(Block& b) {
  int* warps = b.place;  // as scratch space
  for (int i = 0; i < b.warp_count; i++) warps[i] = i;
  if (b.seed) {
    uint64_t state = b.seed * 1000003 + b.index.x * 8191ull + b.index.y * 131ull + b.index.z;
    for (int i = b.warp_count - 1; i > 0; i--) {
      int j = (int)(next_random(state) % (uint64_t)(i + 1)), held = warps[i];
      warps[i] = warps[j];
      warps[j] = held;
    }
  }
  bool backwards = b.seed && b.seed % 2 == 0;
  int at = 0;
  for (int i = 0; i < b.warp_count; i++) {
    int first = warps[i] * 32, count = b.threads - first < 32 ? b.threads - first : 32;
    for (int lane = 0; lane < count; lane++) b.order[at++] = first + (backwards ? count - 1 - lane : lane);
  }
  for (int i = 0; i < b.threads; i++) b.place[b.order[i]] = i;
}

void* allocate(size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

// Grows the worker's arrays for a block of `threads` threads. Returns false if memory runs out.
bool grow(Worker& worker, int threads) {
  Block& b = worker.block;
  if (!b.shared) {
    b.shared = (char*)allocate(STATIC_BYTES + MAX_SHARED);
    if (!b.shared) return false;
    memset(b.shared, 0xFF, STATIC_BYTES);
  }
  if (threads <= worker.capacity) return true;
  int warps = (threads + 31) / 32;
  char* stacks = (char*)allocate(STACK_BYTES * (size_t)threads);
  Fiber* fibers = (Fiber*)calloc((size_t)threads, sizeof(Fiber));
  Warp* warp_array = (Warp*)aligned_alloc(16, sizeof(Warp) * (size_t)warps);
  int* order = (int*)calloc((size_t)threads + 1, sizeof(int));
  int* place = (int*)calloc((size_t)threads + 1, sizeof(int));
  if (!stacks || !fibers || !warp_array || !order || !place) return false;
  if (worker.stacks) munmap(worker.stacks, STACK_BYTES * (size_t)worker.capacity);
  for (int i = 0; i < worker.capacity; i++) free(b.fibers[i].copies);
  free(b.fibers), free(b.warps), free(b.order), free(b.place);
  b.fibers = fibers, b.warps = warp_array, b.order = order, b.place = place;
  worker.stacks = stacks, worker.capacity = threads;
  return true;
}

void run_block(Worker& worker, uint64_t number) {
  Block& b = worker.block;
  b.index = dim3{(unsigned)(number % b.grid.x), (unsigned)(number / b.grid.x % b.grid.y),
                 (unsigned)(number / ((uint64_t)b.grid.x * b.grid.y))};
  b.live = b.threads, b.arrived = 0, b.stalled = 0, b.site = nullptr, b.unfenced = 0;
  memset(b.shared, 0xFF, b.static_poisoned);
  memset(b.shared + STATIC_BYTES, 0xFF, b.shared_bytes);
  b.static_count = 0, b.static_used = 0;
  arrange(b);
  for (int i = 0; i < b.warp_count; i++) {
    Warp& warp = b.warps[i];
    warp.live = b.threads - i * 32 < 32 ? b.threads - i * 32 : 32;
    warp.arrived = 0, warp.generation = 0, warp.site = nullptr;
    memset(warp.slots, 0xFF, sizeof warp.slots);
  }
  for (int i = 0; i < b.threads; i++) {
    Fiber& f = b.fibers[i];
    f.index = i, f.lane = i & 31, f.warp = i >> 5;
    f.thread = dim3{i % b.dim.x, i / b.dim.x % b.dim.y, i / (b.dim.x * b.dim.y)};
    f.finished = false, f.waiting = nullptr, f.copy_count = 0, f.group = 0;
    f.product_count = 0, f.product_group = 0, f.fenced = f.unfenced_copies = false;
    f.stack = worker.stacks + STACK_BYTES * (size_t)i;
    *(uint64_t*)f.stack = CANARY;
    prepare(f.context, f.stack, STACK_BYTES, entry);
  }
  enter(0);
  switch_context(b.scheduler, fiber->context);
}

}  // namespace

void fail(const char* format, ...) {
  Launch& launch = *block->launch;
  uint32_t expected = 0;
  if (__atomic_compare_exchange_n(&launch.failed, &expected, 1u, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
    int used = snprintf(launch.message, sizeof launch.message, "kernel %s, block (%u,%u,%u), thread (%u,%u,%u): ",
                        block->kernel, block->index.x, block->index.y, block->index.z, fiber->thread.x, fiber->thread.y,
                        fiber->thread.z);
    va_list list;
    va_start(list, format);
    vsnprintf(launch.message + used, sizeof launch.message - (size_t)used, format, list);
    va_end(list);
  }
  abandon();
}

void block_barrier(const Site& site) {
  Block& b = *block;
  uint64_t generation = b.generation;
  if (!b.arrived)
    b.site = &site;
  else if (b.site != &site)
    fail("divergent __syncthreads: this thread is at %s:%d, others at %s:%d", site.file, site.line, b.site->file,
         b.site->line);
  if (b.live < b.threads) fail("__syncthreads at %s:%d after some threads returned", site.file, site.line);
  fiber->waiting = &site;
  if (++b.arrived == b.live)
    b.arrived = 0, b.generation++, b.stalled = 0;
  else
    while (b.generation == generation) yield(false);
  fiber->waiting = nullptr;
}

void warp_barrier(const Site& site) {
  Warp& warp = block->warps[fiber->warp];
  uint64_t generation = warp.generation;
  if (!warp.arrived)
    warp.site = &site;
  else if (warp.site != &site)
    fail("divergent warp: this lane is in %s at %s:%d, others in %s at %s:%d", site.what, site.file, site.line,
         warp.site->what, warp.site->file, warp.site->line);
  fiber->waiting = &site;
  if (++warp.arrived == warp.live)
    warp.arrived = 0, warp.generation++, block->stalled = 0;
  else
    while (warp.generation == generation) yield(true);
  fiber->waiting = nullptr;
}

void* static_shared(const Site& site, size_t bytes) {
  Block& b = *block;
  for (int i = 0; i < b.static_count; i++)
    if (b.statics[i].site == &site) return b.shared + b.statics[i].offset;
  uint32_t offset = (b.static_used + 15) & ~15u;
  if (b.static_count == MAX_STATIC || offset + bytes > STATIC_BYTES)
    fail("SHARED_ARRAY %s at %s:%d: more than %u bytes or %d arrays", site.what, site.file, site.line, STATIC_BYTES,
         MAX_STATIC);
  b.statics[b.static_count++] = {&site, offset};
  b.static_used = offset + (uint32_t)bytes;
  if (b.static_used > b.static_poisoned) b.static_poisoned = b.static_used;
  if (b.static_used + b.shared_bytes > b.launch->shared_limit)
    fail("%u bytes of shared memory, of %u", b.static_used + b.shared_bytes, (uint32_t)b.launch->shared_limit);
  return b.shared + offset;
}

void* dynamic_shared() { return block->shared + STATIC_BYTES; }

bool in_shared(const void* pointer, size_t bytes) {
  const char *at = (const char*)pointer, *dynamic = block->shared + STATIC_BYTES;
  return (at >= block->shared && at + bytes <= block->shared + block->static_used) ||
         (at >= dynamic && at + bytes <= dynamic + block->shared_bytes);
}

namespace {
void land(const PendingCopy& copy) {
  if (copy.zero)
    memset(copy.to, 0, (size_t)copy.bytes);
  else
    memcpy(copy.to, copy.from, (size_t)copy.bytes);
}
}  // namespace

// The hardware may copy at any moment between here and the wait. Most seeds copy at the wait, so that
// code that reads too early sees NaN. Every fourth seed copies at once, so that a buffer that is still
// being read gets overwritten.
void copy_async(const Site& site, void* to, const void* from, int bytes, bool copy) {
  if (!in_shared(to, (size_t)bytes)) fail("%s at %s:%d: not to shared memory", site.what, site.file, site.line);
  uintptr_t last = (uintptr_t)bytes - 1;
  if (((uintptr_t)to & last) || (copy && ((uintptr_t)from & last)))
    fail("%s at %s:%d: not aligned to %d bytes", site.what, site.file, site.line, bytes);
  PendingCopy pending = {to, from, fiber->group, bytes, !copy};
  if (block->seed % 4 == 2) return land(pending);
  if (fiber->copy_count == fiber->copy_capacity) {
    int capacity = fiber->copy_capacity ? 2 * fiber->copy_capacity : 16;
    PendingCopy* copies = (PendingCopy*)realloc(fiber->copies, sizeof(PendingCopy) * (size_t)capacity);
    if (!copies) fail("out of memory");
    fiber->copies = copies, fiber->copy_capacity = capacity;
  }
  fiber->copies[fiber->copy_count++] = pending;
}

void copy_async_commit() { fiber->group++; }

void copy_async_wait(int pending) {
  int kept = 0;
  for (int i = 0; i < fiber->copy_count; i++) {
    PendingCopy copy = fiber->copies[i];
    if (copy.group + (uint64_t)pending < fiber->group)
      land(copy);
    else
      fiber->copies[kept++] = copy;
  }
  if (kept < fiber->copy_count && !fiber->unfenced_copies) fiber->unfenced_copies = true, block->unfenced++;
  fiber->copy_count = kept;
}

void need_warp(const Site& site) {
  if (block->warps[fiber->warp].live != 32)
    fail("%s at %s:%d needs all 32 lanes of the warp", site.what, site.file, site.line);
}

// d += a b for a 16x16 by 16x8 product (PTX ISA, mma.m16n8k16). Lane 4 g + t holds rows g and g + 8 of a
// at columns 2t, 2t+1, 2t+8, 2t+9; column g of b at the same rows; and rows g and g + 8 of d at columns
// 2t, 2t+1.
void mma(const Site& site, bool f16, float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
  need_warp(site);
  struct Fragments {
    uint32_t a[4], b[2];
  } mine = {{a[0], a[1], a[2], a[3]}, {b0, b1}};
  unsigned parity = post(site, mine);
  int group = fiber->lane >> 2, within = fiber->lane & 3;
  float sum[4] = {0, 0, 0, 0};
  for (int quad = 0; quad < 4; quad++) {
    Fragments rows = peek<Fragments>(parity, group * 4 + quad);
    Fragments left = peek<Fragments>(parity, 2 * within * 4 + quad), right = peek<Fragments>(parity, (2 * within + 1) * 4 + quad);
    for (int part = 0; part < 2; part++)
      for (int high = 0; high < 2; high++) {
        float row = half_of(f16, rows.a[2 * part], high), row8 = half_of(f16, rows.a[2 * part + 1], high);
        float column = half_of(f16, left.b[part], high), column1 = half_of(f16, right.b[part], high);
        sum[0] += row * column, sum[1] += row * column1, sum[2] += row8 * column, sum[3] += row8 * column1;
      }
  }
  for (int i = 0; i < 4; i++) d[i] += sum[i];
}

// Loads four 8x8 matrices of 16-bit values. Lane 8 m + r passes row r of matrix m; every lane
// receives two values of each.
void load_matrices(const Site& site, uint32_t r[4], const void* row, bool transposed) {
  need_warp(site);
  if ((uintptr_t)row & 15) fail("%s at %s:%d: not aligned to 16 bytes", site.what, site.file, site.line);
  if (!in_shared(row, 16)) fail("%s at %s:%d: not in shared memory", site.what, site.file, site.line);
  unsigned parity = post(site, row);
  int group = fiber->lane >> 2, within = fiber->lane & 3;
  for (int matrix = 0; matrix < 4; matrix++) {
    uint32_t pair = 0;
    for (int high = 0; high < 2; high++) {
      int at = transposed ? 2 * within + high : group, column = transposed ? group : 2 * within + high;
      uint16_t value;
      memcpy(&value, (const char*)peek<const void*>(parity, matrix * 8 + at) + 2 * column, 2);
      pair |= (uint32_t)value << (16 * high);
    }
    r[matrix] = pair;
  }
}

void run(Call* call, const char* kernel, void (*body)(void* const*), void* const* arguments) {
  Launch& launch = *call->launch;
  Worker& worker = *(Worker*)call->worker;
  Block& b = worker.block;
  b.threads = (int)(launch.block[0] * launch.block[1] * launch.block[2]);
  if (!grow(worker, b.threads)) {
    uint32_t expected = 0;
    if (__atomic_compare_exchange_n(&launch.failed, &expected, 1u, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
      snprintf(launch.message, sizeof launch.message, "kernel %s: no memory for %d threads", kernel, b.threads);
    return;
  }
  b.dim = dim3{launch.block[0], launch.block[1], launch.block[2]};
  b.grid = dim3{launch.grid[0], launch.grid[1], launch.grid[2]};
  b.warp_count = (b.threads + 31) / 32;
  b.shared_bytes = (uint32_t)launch.shared_bytes;
  b.seed = launch.seed, b.launch = &launch, b.kernel = kernel, b.body = body, b.arguments = arguments;
  b.static_poisoned = STATIC_BYTES;
  block = &b;
  uint64_t total = (uint64_t)b.grid.x * b.grid.y * b.grid.z;
  for (;;) {
    uint64_t number = __atomic_fetch_add(&launch.next_block, 1, __ATOMIC_SEQ_CST);
    if (number >= total || __atomic_load_n(&launch.failed, __ATOMIC_SEQ_CST)) break;
    run_block(worker, launch.seed % 2 ? total - 1 - number : number);
    if (b.static_poisoned == STATIC_BYTES) b.static_poisoned = b.static_used;
  }
  block = nullptr, fiber = nullptr;
}

extern "C" void* troupe_simulator_worker_new() { return calloc(1, sizeof(Worker)); }

extern "C" void troupe_simulator_worker_free(void* pointer) {
  Worker& worker = *(Worker*)pointer;
  Block& b = worker.block;
  if (worker.stacks) munmap(worker.stacks, STACK_BYTES * (size_t)worker.capacity);
  if (b.shared) munmap(b.shared, STATIC_BYTES + MAX_SHARED);
  for (int i = 0; i < worker.capacity; i++) free(b.fibers[i].copies);
  free(b.fibers), free(b.warps), free(b.order), free(b.place);
  free(pointer);
}

}  // namespace simulator
