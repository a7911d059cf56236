// The smallest kernels that use everything a launch has: tests of the devices run them.
#include "device.cuh"

// y[r] = x[r] / sum(x[r]) for each row of `width` values; one block of whole warps a row.
extern "C" __global__ void normalize_rows(float* y, const bf16* x, int width) {
  SHARED_ARRAY(float, scratch, 33);
  const bf16* row = x + (u64)blockIdx.x * width;
  float sum = 0.f;
  for (int i = threadIdx.x; i < width; i += blockDim.x) sum += to_float(row[i]);
  sum = block_sum(sum, scratch);
  for (int i = threadIdx.x; i < width; i += blockDim.x) y[(u64)blockIdx.x * width + i] = to_float(row[i]) / sum;
}
