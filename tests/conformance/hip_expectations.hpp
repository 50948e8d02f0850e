// What the suite expects of HIP and not of CUDA: the twin of cuda_expectations.hpp.
#pragma once

#include <dlfcn.h>

#include "runtime/hip/vendor.hpp"

namespace uvm::testing {

// HIP refuses managed memory beside a capture that is not relaxed, from version 7 on.
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
// HIP says of no device that it uses the host's page tables, so memory stays managed unless a user
// asks otherwise.
inline constexpr const char* kHostMemoryOfCoherentMachine = "managed";

}  // namespace uvm::testing
