// DeviceRuntime over the CUDA driver API. Primary contexts only, retained on first use of a device
// and never released: they are the ones that the CUDA runtime library and frameworks use.
#pragma once

#include <memory>
#include <string>

#include <uvmalloc/device_runtime.hpp>

namespace uvm {

// A RuntimeFactory: nullptr with a reason where there is no driver or no device.
std::unique_ptr<DeviceRuntime> make_cuda_runtime(std::string* reason);

}  // namespace uvm
