#include "preload/calls.hpp"

namespace uvm::preload {

#define UVMALLOC_ENTRY(name, has_own_look_up, library) {name, has_own_look_up, {name, library}},
#define UVMALLOC_ENTRY_ONE UVMALLOC_ENTRY
#define UVMALLOC_ENTRY_OWN UVMALLOC_ENTRY
#define UVMALLOC_ENTRY_PTSZ(name, ...) \
  UVMALLOC_ENTRY(name, __VA_ARGS__) UVMALLOC_ENTRY(name "_ptsz", __VA_ARGS__)
#define UVMALLOC_ENTRY_SPT(name, ...) \
  UVMALLOC_ENTRY(name, __VA_ARGS__) UVMALLOC_ENTRY(name "_spt", __VA_ARGS__)
// Constant-initialized: other libraries may make calls before this library is initialised.
constinit InterceptedCall intercepted_calls[kCalls] = {
#define CUDA_RUNTIME(name, parameters, forms, handler) \
  UVMALLOC_ENTRY_##forms(#name, false, "libcudart.so")
#define CUDA_DRIVER(name, parameters, forms, handler) \
  UVMALLOC_ENTRY_##forms(#name, true, "libcuda.so")
#define NVML(name, parameters, forms, handler) \
  UVMALLOC_ENTRY_##forms(#name, false, "libnvidia-ml.so")
#define HIP(name, parameters, forms, handler) UVMALLOC_ENTRY_##forms(#name, true, "libamdhip64.so")
#include "preload/calls.def"
};

}  // namespace uvm::preload
