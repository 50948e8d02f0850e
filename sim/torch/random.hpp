// Random numbers of the simulated device: the CUDA generators keep their seeds and offsets, and
// each operator gets a CPU generator derived from them. Equal seeds give equal numbers, but not the
// numbers of a real device.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/cuda/PhiloxCudaState.h>
#include <c10/core/Device.h>

#include <optional>

namespace uvm::sim_kernels {

// Returns the seed and offset of one operator's random numbers. Advances `requested`, by default
// the device's default generator, as a launch on a real device does. Takes the CUDA generator's
// mutex. Throws if `requested` is not a CUDA generator, or is not registered with the running
// capture.
at::PhiloxCudaState next_random_state(const std::optional<at::Generator>& requested,
                                      c10::Device device);

// Returns a CPU generator for that state. Reads a captured state from the device's memory at each
// call, because each launch of a graph finds different numbers there.
at::Generator cpu_generator(const at::PhiloxCudaState& state);

}  // namespace uvm::sim_kernels
