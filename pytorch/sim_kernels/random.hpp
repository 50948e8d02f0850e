// Random numbers of the simulated device: the CUDA generators keep their seeds and offsets, and
// each operator gets a CPU generator derived from them. Equal seeds give equal numbers, other ones
// than a real device's.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

#include <optional>

namespace uvm::sim_kernels {

// A CPU generator for one operator. Advances `requested`, or the device's default generator where
// none is, as a launch on a real device does. Takes the CUDA generator's mutex. Throws where
// `requested` is no CUDA generator.
at::Generator next_cpu_generator(const std::optional<at::Generator>& requested, c10::Device device);

}  // namespace uvm::sim_kernels
