// The simulator's wgmma: decodes descriptors like the hardware, and runs products between their issue and the
// wait. See simulator.h and wgmma.cuh.
#include "simulator.h"

namespace simulator {

namespace {
// An operand's value in shared memory, at row `row` and index `k` of the 16 that are summed over.
float operand_at(bool f16, uint64_t descriptor, bool mn_major, int row, int k) {
  if (descriptor >> 62 != 1 || (descriptor >> 49 & 7)) fail("wgmma: only the 128-byte swizzle without a base offset is simulated");
  auto bytes = [&](int bit) { return (uint32_t)(descriptor >> bit & 0x3fff) << 4; };
  uint32_t at = bytes(0), leading = bytes(16), stride = bytes(32), r = (uint32_t)row, c = (uint32_t)k;
  at += mn_major ? r / 64 * leading + r % 64 * 2 + c / 8 * stride + c % 8 * 128 : r / 8 * stride + r % 8 * 128 + c * 2;
  at ^= (at >> 7 & 7) << 4;
  if (at + 2 > block->shared_bytes) fail("wgmma: an operand lies outside of shared memory");
  uint16_t bits;
  memcpy(&bits, block->shared + STATIC_BYTES + at, 2);
  return half_of(f16, bits, 0);
}

void compute(const PendingProduct& of) {
  int row = (fiber->warp & 3) * 16 + (fiber->lane >> 2), pair = (fiber->lane & 3) * 2;
  float rows[2][16], column[16];
  for (int r = 0; r < 2; r++)
    for (int k = 0; k < 16; k++) rows[r][k] = of.registers ? of.rows[r][k] : operand_at(of.f16, of.a, false, row + 8 * r, k);
  for (int n = 0; n < of.columns / 8; n++)
    for (int c = 0; c < 2; c++) {
      for (int k = 0; k < 16; k++) column[k] = operand_at(of.f16, of.b, of.mn_major, 8 * n + pair + c, k);
      for (int r = 0; r < 2; r++) {
        float sum = 0, *d = &of.d[4 * n + 2 * r + c];
        for (int k = 0; k < 16; k++) sum += rows[r][k] * column[k];
        *d = of.accumulate ? *d + sum : sum;
      }
    }
}
}  // namespace

// The product of four warps, with mma's fragment layout (PTX ISA, wgmma.mma_async). Like a copy it may run
// at any moment up to the wait. Most seeds run it at the wait, so that sums read too early are wrong;
// every fourth runs it at once.
void product(const Site& site, PendingProduct mine) {
  need_warp(site);
  warp_barrier(site);
  if (!fiber->fenced) fail("%s at %s:%d: no wgmma_fence since the last wait", site.what, site.file, site.line);
  if (block->unfenced) fail("%s at %s:%d: no fence_proxy_async after copies", site.what, site.file, site.line);
  if (block->seed % 4 == 2) return compute(mine);
  if (fiber->product_count == MAX_PRODUCTS) fail("%s at %s:%d: more than %d products", site.what, site.file, site.line, MAX_PRODUCTS);
  mine.group = fiber->product_group;
  fiber->products[fiber->product_count++] = mine;
}

void wait_products(int pending) {
  int kept = 0;
  for (int i = 0; i < fiber->product_count; i++) {
    const PendingProduct& of = fiber->products[i];
    if (of.group + (uint64_t)pending < fiber->product_group)
      compute(of);
    else
      fiber->products[kept++] = of;
  }
  fiber->product_count = kept;
  if (!kept) fiber->fenced = false;
}

void fence_proxy() {
  if (fiber->unfenced_copies) fiber->unfenced_copies = false, block->unfenced--;
}

}  // namespace simulator
