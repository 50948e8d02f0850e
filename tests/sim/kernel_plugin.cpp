// A kernel plug-in for tests, done at the second poll. Like a real plug-in, it calls the runtime.
#include <cuda_runtime_api.h>

#include <cstdio>

extern "C" __attribute__((visibility("default"))) int uvmsim_kernels_poll(void) {
  static int polls = 0;
  int count = 0;
  cudaGetDeviceCount(&count);
  std::printf("probe: poll %d sees %d\n", ++polls, count);
  return polls == 2 ? 1 : 0;
}
