// What the suite expects of CUDA and not of HIP. hip_expectations.hpp is the twin, written by hand.
#pragma once

namespace uvm::testing {

// Managed memory can be allocated while a stream is captured.
inline bool allocates_beside_captures() {
  return true;
}
// A device has a context, or none yet.
inline constexpr bool kContextsAreMade = true;
// What host memory is where devices reach the program's memory over a coherent link.
inline constexpr const char* kHostMemoryOfCoherentMachine = "ordinary";

}  // namespace uvm::testing
