// A kernel plug-in for tests: done at the second poll. It calls the runtime from within, as real
// ones do.
#include <cuda_runtime_api.h>

#include <cstdio>

extern "C" __attribute__((visibility("default"))) int uvmsim_kernels_poll(void) {
  static int polls = 0;
  int count = 0;
  cudaGetDeviceCount(&count);
  std::printf("probe: poll %d sees %d\n", ++polls, count);
  return polls == 2 ? 1 : 0;
}
