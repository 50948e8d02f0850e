// DeviceRuntime over the CUDA driver API. Uses each device's primary context, as the CUDA runtime
// library and frameworks do. Retains a device's context at the first use and never releases it.
#pragma once

#include <memory>
#include <string>

#include <uvmalloc/device_runtime.hpp>

namespace uvm {

// A RuntimeFactory: returns nullptr, with a reason, if there is no driver or no device.
std::unique_ptr<DeviceRuntime> make_cuda_runtime(std::string* reason);

}  // namespace uvm
