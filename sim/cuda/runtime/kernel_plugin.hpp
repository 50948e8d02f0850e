// Kernels for the simulated device as a plug-in: the shared library that UVMSIM_KERNELS names is
// loaded at the first call of one of a few common entry points, and its `int
// uvmsim_kernels_poll(void)` is called at each of them until it returns nonzero: it waits until
// what it depends on is loaded into the process, registers its kernels then, and is done. The poll
// may itself call the stand-ins (it is not called again from within) and no lock is held around it.
#pragma once

namespace uvmsim::cuda {

// Costs one relaxed atomic load once the plug-in is done, or where there is none.
void poll_kernel_plugin();

}  // namespace uvmsim::cuda
