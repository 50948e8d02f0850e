// The environment of a CPU kernel that replaces a device's kernel. Lives on the stack around the
// kernel's call.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "sim/torch/compute_threads.hpp"

namespace uvm::sim_kernels {

// Scratch memory of the CPU kernel replaces registers of the device's kernel. So under uvmalloc the
// scratch memory comes from malloc and does not count as host memory of the program.
class ScratchScope {
 public:
  ScratchScope();
  ~ScratchScope();
  ScratchScope(const ScratchScope&) = delete;
  ScratchScope& operator=(const ScratchScope&) = delete;

 private:
  int before_;
};

class CpuKernelScope {
 private:
  // Aliases are not the program's tensors: autograd and version counters have handled the
  // originals. The program's modes must not see aliases; any mode may be on at a graph's launch.
  const at::AutoDispatchBelowADInplaceOrView below_autograd_;
  const c10::impl::ExcludeDispatchKeyGuard without_modes_{c10::python_ks |
                                                          c10::autocast_dispatch_keyset};
  const ScratchScope scratch_;
  const ComputeThreads threads_;
};

}  // namespace uvm::sim_kernels
