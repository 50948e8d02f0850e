// Kernels for the simulated device as a plug-in. UVMSIM_KERNELS names a shared library, which is
// loaded at the first call of one of a few common entry points. Each of these calls its
// `int uvmsim_kernels_poll(void)` until it returns nonzero. The poll returns zero until the
// libraries that it depends on are in the process; then it registers its kernels. The poll
// may itself call the stand-ins (it is not called again from within) and no lock is held around it.
#pragma once

namespace uvmsim::api {

// Costs one relaxed atomic load once the plug-in is done, or where there is none.
void poll_kernel_plugin();

}  // namespace uvmsim::api
