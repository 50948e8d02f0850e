// Kernels for the simulated device as a plug-in: a shared library that UVMSIM_KERNELS names. A few
// common entry points load the library at their first call, and then call its `int
// uvmsim_kernels_poll(void)` until the poll returns nonzero. The poll returns zero until the
// libraries that it depends on are in the process; then it registers its kernels. The poll may call
// the stand-ins: it is not called recursively, and no lock is held during the call.
//
// A plug-in may also export uvmsim_kernels_launch and uvmsim_kernels_parameters (uvmsim.h), for
// kernels that a program launches itself.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include <uvmalloc/sim/uvmsim.h>

namespace uvmsim::api {

// Costs one relaxed atomic load after the poll has returned nonzero, or if there is no plug-in.
void poll_kernel_plugin();

// Returns the result of the plug-in's uvmsim_kernels_launch(), or UVMSIM_ERROR_INVALID if the
// plug-in exports no such function.
int launch_in_plugin(const char* symbol, int device, void* stream, const uvmsim_grid& grid,
                     void** arguments);

// Returns the result of the plug-in's uvmsim_kernels_parameters(), or nullopt if the plug-in does
// not export that function or does not know the kernel.
std::optional<std::vector<std::size_t>> parameter_sizes_in_plugin(const char* symbol);

}  // namespace uvmsim::api
