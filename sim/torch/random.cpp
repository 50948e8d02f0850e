#include "sim/torch/random.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>

#include <mutex>

#include "sim/torch/simulator.hpp"

namespace uvm::sim_kernels {
namespace {

// The number of Philox counter values that one operator takes: the generator's smallest step.
constexpr std::uint64_t kOffsetStep = 4;

// SplitMix64's finaliser: neighbouring seeds and offsets give unrelated CPU seeds.
std::uint64_t mix(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

std::uint64_t value_on_device(const std::int64_t* address) {
  const void* view = device_view(address);
  TORCH_CHECK(view != nullptr, "the generator's state that a CUDA graph was captured with is gone");
  return static_cast<std::uint64_t>(*static_cast<const std::int64_t*>(view));
}

}  // namespace

at::PhiloxCudaState next_random_state(const std::optional<at::Generator>& requested,
                                      c10::Device device) {
  auto* generator = at::get_generator_or_default<at::CUDAGeneratorImpl>(
      requested, at::cuda::detail::getDefaultCUDAGenerator(device.index()));
  const std::lock_guard lock(generator->mutex_);
  return generator->philox_cuda_state(kOffsetStep);
}

at::Generator cpu_generator(const at::PhiloxCudaState& state) {
  std::uint64_t seed = state.seed_.val;
  std::uint64_t offset = state.offset_.val;
  if (state.captured_) {
    seed = value_on_device(state.seed_.ptr);
    offset = value_on_device(state.offset_.ptr) + state.offset_intragraph_;
  }
  return at::make_generator<at::CPUGeneratorImpl>(mix(seed + 0x9e3779b97f4a7c15u) ^ mix(offset));
}

}  // namespace uvm::sim_kernels
