// Macros that begin and end every entry point of the stand-in runtime library. RT_API declares an
// entry point. The entry point starts with RT_ENTER (counts the call, fails on demand and in a
// forked child) or RT_ENTER_DEVICE (also gets the current device and makes its context active), and
// ends in finish() or fail(), which set the calling thread's last error.
#pragma once

#include <cuda_runtime_api.h>

#include "sim/api/entry_point.hpp"
#include "sim/engine/machine.hpp"
#include "sim/engine/status.hpp"

namespace uvmsim::cuda {

using namespace api;

// Returns the error. Unless the error is success, it becomes the thread's last error.
cudaError_t fail(cudaError_t error);
cudaError_t finish(Status status);

// Returns the calling thread's device, or -1 if no device is visible. If the thread has no context,
// the device's primary context becomes current.
int use_device();

inline Machine& machine() {
  return Machine::instance();
}

// The following parts differ in HIP, so sim/hip/runtime/entry.hpp has its own. hipify translates
// most other files of this folder.
inline constexpr int kLeastPriority = 0;
inline constexpr int kGreatestPriority = -5;
inline constexpr unsigned kEventFlags =
    cudaEventBlockingSync | cudaEventDisableTiming | cudaEventInterprocess;
// Returns whether managed memory may be allocated now: during a capture, if the modes of the thread
// and of the capture allow it.
inline Status admit_managed_call() {
  return Status::kOk;
}
// Each kind of memory has its own free function.
inline Status free_of_device(void* address) {
  return machine().memory().free(address, Wait::kYes);
}
inline Status free_of_host(void* address) {
  return machine().memory().free_pinned(address);
}
inline std::size_t total_bytes_of(const MemoryUse& use) {
  return use.capacity_bytes;
}
// Returns whether the error becomes the thread's last error.
inline bool is_kept(cudaError_t error) {
  return error != cudaSuccess;
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
