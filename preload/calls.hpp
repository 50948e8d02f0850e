// The calls of CUDA and HIP that this library intercepts: an enumerator and an entry for each
// function in calls.def. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>

#include "preload/interpose.hpp"

namespace uvm::preload {

enum Call : std::uint16_t {
#define UVMALLOC_NUMBER_ONE(number) number,
#define UVMALLOC_NUMBER_OWN(number) number,
#define UVMALLOC_NUMBER_PTSZ(number) number, number##_ptsz,
#define UVMALLOC_NUMBER_SPT(number) number, number##_spt,
#define CUDA_RUNTIME(name, parameters, forms, handler) UVMALLOC_NUMBER_##forms(kCall_##name)
#define CUDA_DRIVER CUDA_RUNTIME
#define HIP CUDA_RUNTIME
#define NVML CUDA_RUNTIME
#include "preload/calls.def"
  kCalls
};

struct InterceptedCall {
  const char* name;
  bool has_own_look_up;  // the interface has its own look-up by name (cuGetProcAddress)
  NextDefinition real;
  std::atomic<void*> ours = nullptr;  // set by the first look-up that returns uvmalloc's function
};
// Indexed by Call.
extern __attribute__((visibility("hidden"))) InterceptedCall intercepted_calls[kCalls];

}  // namespace uvm::preload
