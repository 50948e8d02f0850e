// Random numbers of the simulated device: the CUDA generators keep their seeds and offsets, and
// each operator gets a CPU generator derived from them. Equal seeds give equal numbers, other ones
// than a real device's.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/cuda/PhiloxCudaState.h>
#include <c10/core/Device.h>

#include <optional>

namespace uvm::sim_kernels {

// What one operator's random numbers are made of. Advances `requested`, or the device's default
// generator where none is, as a launch on a real device does. Takes the CUDA generator's mutex.
// Throws where `requested` is no CUDA generator, or takes no part in a capture that goes on.
at::PhiloxCudaState next_random_state(const std::optional<at::Generator>& requested,
                                      c10::Device device);

// A CPU generator for it. A captured state is read from the device's memory at the call: each
// launch of a graph finds other numbers there.
at::Generator cpu_generator(const at::PhiloxCudaState& state);

}  // namespace uvm::sim_kernels
