#include <uvmalloc/pytorch/sim_kernels/random.hpp>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>

#include <mutex>

namespace uvm::sim_kernels {
namespace {

// Values of the Philox counter that one operator takes; the least step the generator knows.
constexpr std::uint64_t kOffsetStep = 4;

// SplitMix64's finaliser: neighbouring seeds and offsets give unrelated CPU seeds.
std::uint64_t mix(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

}  // namespace

at::Generator next_cpu_generator(const std::optional<at::Generator>& requested,
                                 c10::Device device) {
  auto* generator = at::get_generator_or_default<at::CUDAGeneratorImpl>(
      requested, at::cuda::detail::getDefaultCUDAGenerator(device.index()));
  at::PhiloxCudaState state;
  {
    const std::lock_guard lock(generator->mutex_);
    state = generator->philox_cuda_state(kOffsetStep);
  }
  const std::uint64_t seed = mix(state.seed_.val + 0x9e3779b97f4a7c15u) ^ mix(state.offset_.val);
  return at::make_generator<at::CPUGeneratorImpl>(seed);
}

}  // namespace uvm::sim_kernels
