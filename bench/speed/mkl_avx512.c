/* Loaded before PyTorch (LD_PRELOAD) so that MKL takes its AVX-512 kernels on processors not made by Intel.
 * MKL asks this function of its own and falls back to AVX2 otherwise: the yardstick would be slower than it need be. */
int mkl_serv_intel_cpu_true(void) { return 1; }
