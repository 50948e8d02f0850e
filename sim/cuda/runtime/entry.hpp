// How every entry point of the stand-in runtime library begins and ends. RT_API declares one; it
// starts with RT_ENTER (count, failures on demand, forked child) or RT_ENTER_DEVICE (also: a
// current device, with its context active), and ends in finish or fail, which keep the calling
// thread's last error.
#pragma once

#include <cuda_runtime_api.h>

#include <uvmalloc/sim/cuda/common/entry_point.hpp>
#include <uvmalloc/sim/engine/machine.hpp>
#include <uvmalloc/sim/engine/status.hpp>

namespace uvmsim::cuda {

// Returned as is; anything but success becomes the thread's last error.
cudaError_t fail(cudaError_t error);
cudaError_t finish(Status status);

// The calling thread's device, whose primary context is made current if none was; -1 where no
// device is visible.
int use_device();

inline Machine& machine() {
  return Machine::instance();
}

}  // namespace uvmsim::cuda

#define RT_API extern "C" UVMSIM_EXPORT cudaError_t
#define RT_API_AS(type) extern "C" UVMSIM_EXPORT type

#define RT_ENTER                                              \
  UVMSIM_CALL_RECORD;                                         \
  if (const auto refused = uvmsim::cuda::refuse(call_record)) \
  return uvmsim::cuda::fail(static_cast<cudaError_t>(*refused))

#define RT_ENTER_DEVICE                          \
  RT_ENTER;                                      \
  const int device = uvmsim::cuda::use_device(); \
  if (device < 0) return uvmsim::cuda::fail(cudaErrorNoDevice)
