// The simulator's control interface, bound at run time, so that these libraries load in any
// process. Without a simulator, device memory counts as ordinary memory, and these functions report
// nothing. Owns nothing; any thread may call.
#pragma once

#include <uvmalloc/sim/uvmsim.h>

namespace uvm::sim_kernels {

struct Simulator {
  decltype(&uvmsim_kernel_arithmetic) kernel = nullptr;
  decltype(&uvmsim_launch_arithmetic) launch = nullptr;
  decltype(&uvmsim_device_view) device_view = nullptr;
  decltype(&uvmsim_is_forked_child) is_forked_child = nullptr;
};

const Simulator& simulator();

// Returns the address at which a kernel accesses the bytes of `address`; null if devices cannot
// access them.
void* device_view(const void* address);

}  // namespace uvm::sim_kernels
