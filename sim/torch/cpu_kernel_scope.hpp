// The surroundings in which a CPU kernel stands for a device's. Lives on the stack around its call.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <uvmalloc/sim/torch/compute_threads.hpp>

namespace uvm::sim_kernels {

// What a CPU kernel takes from the CPU allocator while it stands for a device's kernel is that
// kernel's registers and scratch memory: under uvmalloc it comes from malloc and is no host memory
// of the program.
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
  // The aliases are no tensors of the program: autograd and version counters have been dealt with
  // on the originals, and modes of the program's (a graph's launch meets whichever are on) are not
  // asked.
  const at::AutoDispatchBelowADInplaceOrView below_autograd_;
  const c10::impl::ExcludeDispatchKeyGuard without_modes_{c10::python_ks |
                                                          c10::autocast_dispatch_keyset};
  const ScratchScope scratch_;
  const ComputeThreads threads_;
};

}  // namespace uvm::sim_kernels
