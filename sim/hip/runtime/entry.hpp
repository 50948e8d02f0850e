// Macros that begin and end every entry point of the stand-in for HIP. They have the same names as
// the macros in sim/cuda/runtime/entry.hpp, so hipify can translate most files of that folder
// (hipify/README.md).
#pragma once

#include <hip/hip_runtime_api.h>

#include <algorithm>

#include "sim/api/entry_point.hpp"
#include "sim/engine/machine.hpp"
#include "sim/engine/status.hpp"
#include "sim/hip/common/version.hpp"

namespace uvmsim::hip {

using namespace api;

// Returns the error, and records it as the thread's last error, as CUDA's stand-in does.
hipError_t fail(hipError_t error);
hipError_t finish(Status status);

// Returns the calling thread's device, or -1 if no device is visible. A thread starts on device 0.
int use_device();

inline Machine& machine() {
  return Machine::instance();
}

inline constexpr int kLeastPriority = 1;
inline constexpr int kGreatestPriority = -1;
inline constexpr unsigned kEventFlags = hipEventBlockingSync | hipEventDisableTiming |
                                        hipEventInterprocess | hipEventDisableSystemFence |
                                        hipEventReleaseToDevice | hipEventReleaseToSystem;
// Since version 7.0, managed memory and advice are refused during a capture that is not relaxed,
// independently of the thread's mode.
inline Status admit_managed_call() {
  return kVersion >= kStrictCaptures ? machine().graphs().refuse_beside_captures() : Status::kOk;
}
// In HIP, all free calls are the same function.
inline Status free_of_device(void* address) {
  const auto allocation = machine().memory().find(address);
  return allocation && allocation->kind == MemoryKind::kPinned
             ? machine().memory().free_pinned(address)
             : machine().memory().free(address, Wait::kYes);
}
inline Status free_of_host(void* address) {
  return free_of_device(address);
}
// An integrated device reports only the memory that the firmware has reserved for the device, but
// the device can use more.
inline std::size_t total_bytes_of(const MemoryUse& use) {
  constexpr std::size_t kCarveOutPart = 4;
  return machine().profile().shares_host_memory() ? use.capacity_bytes / kCarveOutPart
                                                  : use.capacity_bytes;
}
inline bool is_kept(hipError_t error) {
  return error != hipSuccess && error != hipErrorNotReady;
}

}  // namespace uvmsim::hip

#define RT_API extern "C" UVMSIM_EXPORT hipError_t
#define RT_API_AS(type) extern "C" UVMSIM_EXPORT type

#define RT_ENTER                                             \
  UVMSIM_CALL_RECORD;                                        \
  if (const auto refused = uvmsim::hip::refuse(call_record)) \
  return uvmsim::hip::fail(static_cast<hipError_t>(*refused))

#define RT_ENTER_DEVICE                         \
  RT_ENTER;                                     \
  const int device = uvmsim::hip::use_device(); \
  if (device < 0) return uvmsim::hip::fail(hipErrorNoDevice)
