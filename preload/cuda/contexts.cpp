// Contexts of CUDA, which both interfaces share.
#include <cuda.h>

#include <vector>

#include "allocator/process/process_allocator.hpp"
#include "preload/cuda/driver.hpp"
#include "preload/device_answers.hpp"

namespace uvm::preload::cuda {

const void* current_context() noexcept {
  CUcontext context = nullptr;
  return pass_on(NEXT_OF_DRIVER(cuCtxGetCurrent), &context) == CUDA_SUCCESS ? context : nullptr;
}

bool is_inactive(int device) noexcept {
  unsigned flags = 0;
  return number_of(NEXT_OF_DRIVER(cuDevicePrimaryCtxGetState), device, &flags) == 0;
}

// Drivers before CUDA 13 report the device of the current context only.
int Driver::device_of_context(CUcontext context) noexcept {
  if (context == nullptr) return device();
  if (pass_on(NEXT_OF_DRIVER(cuCtxPushCurrent_v2), context) != CUDA_SUCCESS) return -1;
  const int found = device();
  pass_on(NEXT_OF_DRIVER(cuCtxPopCurrent_v2), &context);
  return found;
}

void note_streams_gone(CUcontext context) {
  const CachingManagedAllocator* ours = process_allocator();
  const int device = ours != nullptr && !ours->inspection().in_forked_child()
                         ? Driver::device_of_context(context)
                         : -1;
  if (device < 0) return;
  for (const DeviceStream& stream : ours->streams().of(device)) {
    CUcontext of = nullptr;
    auto* const handle = static_cast<CUstream>(stream.handle);
    if (is_default_stream(handle)) continue;
    if (pass_on(NEXT_OF_DRIVER(cuStreamGetCtx), handle, &of) == CUDA_SUCCESS && of == context)
      note_stream_gone(handle);
  }
}

}  // namespace uvm::preload::cuda
