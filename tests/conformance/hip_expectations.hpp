// What the suite expects of HIP only: the twin of cuda_expectations.hpp.
#pragma once

#include <dlfcn.h>

#include "runtime/hip/vendor.hpp"

namespace uvm::testing {

// From version 7 on, HIP refuses managed memory during a capture that is not relaxed.
inline bool allocates_beside_captures() {
  constexpr int kStrict = 70000000;
  void* library = hip::load_driver().handle;
  int version = 0;
  return reinterpret_cast<hipError_t (*)(int*)>(dlsym(library, "hipDriverGetVersion"))(&version) ==
             hipSuccess &&
         version < kStrict;
}
// Devices need no contexts.
inline constexpr bool kContextsAreMade = false;
// HIP reports for no device that it uses the host's page tables, so memory stays managed unless a
// user requests otherwise.
inline constexpr const char* kHostMemoryOfCoherentMachine = "managed";

}  // namespace uvm::testing
