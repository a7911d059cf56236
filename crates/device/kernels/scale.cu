// Small kernels that use every feature of a launch, for the tests of devices.
#include "device.cuh"

// y[r] = x[r] / sum(x[r]) for each row of `width` values. One block of whole warps per row.
extern "C" __global__ void normalize_rows(float* y, const scalar_t* x, int width) {
  SHARED_ARRAY(float, scratch, 33);
  const scalar_t* row = x + (u64)blockIdx.x * width;
  float sum = 0.f;
  for (int i = threadIdx.x; i < width; i += blockDim.x) sum += to_float(row[i]);
  sum = block_sum(sum, scratch);
  for (int i = threadIdx.x; i < width; i += blockDim.x) y[(u64)blockIdx.x * width + i] = to_float(row[i]) / sum;
}
