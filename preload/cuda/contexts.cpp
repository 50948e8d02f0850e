// Calls that end contexts of CUDA.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <vector>

#include "allocator/process/process_allocator.hpp"
#include "preload/context_ends.hpp"
#include "preload/cuda/driver.hpp"
#include "preload/cuda/vendor.hpp"
#include "preload/device_answers.hpp"

namespace uvm::preload::cuda {

const void* context_of_thread() noexcept {
  CUcontext context = nullptr;
  const auto ask = NEXT_OF_DRIVER(cuCtxGetCurrent);
  return ask != nullptr && ask(&context) == CUDA_SUCCESS ? context : nullptr;
}

// Drivers before CUDA 13 report the device of the current context only.
int device_of(CUcontext context) noexcept {
  if (context == nullptr) return device_of_driver();
  if (pass_on(NEXT_OF_DRIVER(cuCtxPushCurrent_v2), context) != CUDA_SUCCESS) return -1;
  const int device = device_of_driver();
  pass_on(NEXT_OF_DRIVER(cuCtxPopCurrent_v2), &context);
  return device;
}

namespace {

bool is_inactive(CUdevice device) noexcept {
  unsigned flags = 0;
  int active = 1;
  const auto ask = NEXT_OF_DRIVER(cuDevicePrimaryCtxGetState);
  return ask != nullptr && ask(device, &flags, &active) == CUDA_SUCCESS && active == 0;
}

// Streams end with their context, without a call that names them.
void note_streams_gone(CUcontext context) {
  const CachingManagedAllocator* ours = process_allocator();
  const int device = ours != nullptr && !ours->in_forked_child() ? device_of(context) : -1;
  if (device < 0) return;
  for (const DeviceStream& stream : ours->streams_of(device)) {
    CUcontext of = nullptr;
    auto* const handle = static_cast<CUstream>(stream.handle);
    if (is_default_stream(handle)) continue;
    if (pass_on(NEXT_OF_DRIVER(cuStreamGetCtx), handle, &of) == CUDA_SUCCESS && of == context)
      note_stream_gone(handle);
  }
}

CUresult destroy(const char* call, CUcontext context, CUresult (*next)(CUcontext)) noexcept {
  forget_layouts(call);
  beside(call, [&] { note_streams_gone(context); });
  const CUresult result = pass_on(next, context);
  ServedMemory* served = ServedMemory::existing();
  if (result == CUDA_SUCCESS && served != nullptr) served->free_all_of(context);
  return result;
}

CUresult reset(const char* call, CUdevice device, CUresult (*next)(CUdevice)) noexcept {
  return pass_reset_on(
      call, device, [&] { return pass_on(next, device); }, [&] { return is_inactive(device); });
}

}  // namespace
}  // namespace uvm::preload::cuda

using namespace uvm::preload;
using namespace uvm::preload::cuda;

// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming)

// The forms without a number are those of CUDA 3.2 and 10.
#undef cuCtxDestroy
#undef cuDevicePrimaryCtxReset

UVMALLOC_INTERPOSE CUresult cuCtxDestroy(CUcontext context) {
  return destroy(__func__, context, NEXT_OF_DRIVER(cuCtxDestroy));
}

UVMALLOC_INTERPOSE CUresult cuCtxDestroy_v2(CUcontext context) {
  return destroy(__func__, context, NEXT_OF_DRIVER(cuCtxDestroy_v2));
}

UVMALLOC_INTERPOSE CUresult cuDevicePrimaryCtxReset(CUdevice device) {
  return reset(__func__, device, NEXT_OF_DRIVER(cuDevicePrimaryCtxReset));
}

UVMALLOC_INTERPOSE CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
  return reset(__func__, device, NEXT_OF_DRIVER(cuDevicePrimaryCtxReset_v2));
}

UVMALLOC_INTERPOSE cudaError_t cudaDeviceReset() {
  const int device = device_of_runtime();
  return pass_reset_on(
      __func__, device, [] { return pass_on(NEXT_OF_RUNTIME(cudaDeviceReset)); },
      [&] { return is_inactive(device); });
}

// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)
