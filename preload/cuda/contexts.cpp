// CUDA's contexts, for the handlers of both interfaces: the runtime and the driver.
#include <cuda.h>

#include <vector>

#include "allocator/process/process_allocator.hpp"
#include "preload/cuda/driver.hpp"
#include "preload/cuda/green_contexts.hpp"
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

// Makes `context` current to get its device, because drivers before CUDA 13 report only the current
// device.
int Driver::device_of_context(CUcontext context) noexcept {
  if (context == nullptr) return device();
  if (pass_on(NEXT_OF_DRIVER(cuCtxPushCurrent_v2), context) != CUDA_SUCCESS) return -1;
  const int found = device();
  pass_on(NEXT_OF_DRIVER(cuCtxPopCurrent_v2), &context);
  return found;
}

namespace {

// Forgets the device's known streams for which `belongs` returns true.
void note_streams_gone_if(const CachingManagedAllocator& ours, int device, auto belongs) {
  for (const DeviceStream& stream : ours.streams().of(device)) {
    auto* const handle = static_cast<CUstream>(stream.handle);
    if (!is_default_stream(handle) && belongs(handle)) note_stream_gone(handle);
  }
}

}  // namespace

void note_streams_gone(CUcontext context) {
  const CachingManagedAllocator* ours = process_allocator();
  if (ours == nullptr || ours->inspection().in_forked_child()) return;
  const int device = Driver::device_of_context(context);
  if (device < 0) return;
  note_streams_gone_if(*ours, device, [&](CUstream stream) {
    CUcontext of = nullptr;
    return pass_on(NEXT_OF_DRIVER(cuStreamGetCtx), stream, &of) == CUDA_SUCCESS && of == context;
  });
}

void note_streams_of_green_gone(const void* context) {
  const CachingManagedAllocator* ours = process_allocator();
  if (ours == nullptr || context == nullptr || ours->inspection().in_forked_child()) return;
  for (int device = 0; device < ours->inspection().runtime().device_count(); ++device) {
    note_streams_gone_if(*ours, device, [&](CUstream stream) {
      CUgreenCtx of = nullptr;
      return pass_on(NEXT_OF_DRIVER(cuStreamGetGreenCtx), stream, &of) == CUDA_SUCCESS &&
             of == context;
    });
  }
}

}  // namespace uvm::preload::cuda
