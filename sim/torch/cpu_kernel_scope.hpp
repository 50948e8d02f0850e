// The surroundings in which a CPU kernel stands for a device's. Lives on the stack around its call.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "sim/torch/compute_threads.hpp"

namespace uvm::sim_kernels {

// Scratch memory of a CPU kernel that stands for a device's kernel. It stands for the registers of
// that kernel. So under uvmalloc it comes from malloc, and is no host memory of the program.
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
  // The aliases are no tensors of the program. Autograd and version counters have dealt with the
  // originals. Modes of the program must not see aliases; any may be on at a graph's launch.
  const at::AutoDispatchBelowADInplaceOrView below_autograd_;
  const c10::impl::ExcludeDispatchKeyGuard without_modes_{c10::python_ks |
                                                          c10::autocast_dispatch_keyset};
  const ScratchScope scratch_;
  const ComputeThreads threads_;
};

}  // namespace uvm::sim_kernels
