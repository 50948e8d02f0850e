// What the suite expects of CUDA only. hip_expectations.hpp is the handwritten twin.
#pragma once

namespace uvm::testing {

// Returns whether managed memory can be allocated while a stream is captured.
inline bool allocates_beside_captures() {
  return true;
}
// A device has a context only after something makes one.
inline constexpr bool kContextsAreMade = true;
// How host memory is backed if devices reach the program's memory over a coherent link.
inline constexpr const char* kHostMemoryOfCoherentMachine = "ordinary";

}  // namespace uvm::testing
