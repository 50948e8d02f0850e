// How every entry point of the stand-in runtime library begins and ends. RT_API declares one; it
// starts with RT_ENTER (count, failures on demand, forked child) or RT_ENTER_DEVICE (also: a
// current device, with its context active), and ends in finish or fail, which keep the calling
// thread's last error.
#pragma once

#include <cuda_runtime_api.h>

#include "sim/api/entry_point.hpp"
#include "sim/engine/machine.hpp"
#include "sim/engine/status.hpp"

namespace uvmsim::cuda {

using namespace api;

// Returned as is; anything but success becomes the thread's last error.
cudaError_t fail(cudaError_t error);
cudaError_t finish(Status status);

// The calling thread's device, whose primary context is made current if none was; -1 where no
// device is visible.
int use_device();

inline Machine& machine() {
  return Machine::instance();
}

// What differs in HIP, whose entry.hpp has it too: the other files of this folder that have a twin
// there are translated.
inline constexpr int kLeastPriority = 0;
inline constexpr int kGreatestPriority = -5;
inline constexpr unsigned kEventFlags =
    cudaEventBlockingSync | cudaEventDisableTiming | cudaEventInterprocess;
// Managed memory may be allocated beside a capture, as far as the modes of thread and capture
// allow.
inline Status admit_managed_call() {
  return Status::kOk;
}
// Each kind of memory is freed by calls of its own.
inline Status free_of_device(void* address) {
  return machine().free_memory(address, Wait::kYes);
}
inline Status free_of_host(void* address) {
  return machine().free_pinned(address);
}
inline std::size_t total_bytes_of(const MemoryUse& use) {
  return use.capacity_bytes;
}
// Whether the error becomes the thread's last one.
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
