// The call that reports where pages are: new in CUDA 13.4, and not in HIP.
#include "sim/api/placement.hpp"
#include "sim/cuda/runtime/entry.hpp"

using namespace uvmsim;
using namespace uvmsim::cuda;

RT_API cudaMemGetLocationInfo(void* address, size_t bytes, size_t summary_bytes,
                              size_t sample_bytes, cudaMemLocation* out) {
  RT_ENTER_DEVICE;
  return finish(location_info({address, bytes}, summary_bytes, sample_bytes, out));
}
