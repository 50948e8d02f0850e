#include "sim/torch/launch.hpp"

#include <c10/cuda/CUDAException.h>
#include <c10/util/Exception.h>
#include <cuda_runtime_api.h>

#include <cstdio>
#include <exception>
#include <utility>

#include "sim/torch/extent.hpp"

namespace uvm::sim_kernels {
namespace {

struct RecordedWork {
  std::string operator_name;
  std::function<void()> work;
};

int run_recorded(void* context) {
  const auto* recorded = static_cast<const RecordedWork*>(context);
  std::string reason;
  try {
    recorded->work();
    return 0;
  } catch (const c10::Error& error) {
    reason = error.what_without_backtrace();
  } catch (const std::exception& error) {
    reason = error.what();
  }
  std::fprintf(stderr, "uvmsim: %s failed in the launch of a CUDA graph: %s\n",
               recorded->operator_name.c_str(), reason.c_str());
  return 1;
}

void release_recorded(void* context) {
  delete static_cast<RecordedWork*>(context);
}

}  // namespace

Launch::Launch(c10::Device device, std::string operator_name)
    : device_guard_(device),
      stream_(c10::cuda::getCurrentCUDAStream(device.index())),
      operator_name_(std::move(operator_name)) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  C10_CUDA_CHECK(cudaStreamIsCapturing(stream_.stream(), &status));
  if (status == cudaStreamCaptureStatusInvalidated)
    C10_CUDA_CHECK(cudaErrorStreamCaptureInvalidated);
  is_capturing_ = status == cudaStreamCaptureStatusActive;
}

void Launch::touch(const at::Tensor& tensor, int access) {
  const std::size_t size_bytes = extent_bytes(tensor);
  if (size_bytes == 0) return;
  const auto* base = static_cast<const std::byte*>(tensor.storage().data());
  accesses_.push_back({base + tensor.storage_offset() * tensor.itemsize(), size_bytes, access});
}

void Launch::submit() {
  if (accesses_.empty() || is_capturing_) return;
  if (const auto kernel = simulator().kernel) {
    const uvmsim_arithmetic arithmetic = this->arithmetic();
    check(kernel(device().index(), stream_.stream(), accesses_.data(), accesses_.size(),
                 &arithmetic));
  }
  accesses_.clear();
  submitted_ = true;
}

void Launch::record(std::function<void()> work) {
  const auto launch = simulator().launch;
  TORCH_CHECK(launch, operator_name_, ": there is no simulator that could capture it");
  auto* recorded = new RecordedWork{operator_name_, std::move(work)};
  const uvmsim_arithmetic arithmetic = this->arithmetic();
  check(launch(device().index(), stream_.stream(), accesses_.data(), accesses_.size(), &arithmetic,
               &run_recorded, &release_recorded, recorded));
}

void Launch::check(int error) const {
  if (error == UVMSIM_ERROR_ADDRESS) fail_illegal_address(nullptr);
  if (error == UVMSIM_ERROR_CAPTURE) C10_CUDA_CHECK(cudaErrorStreamCaptureInvalidated);
  TORCH_CHECK_WITH(
      OutOfMemoryError, error != UVMSIM_ERROR_OUT_OF_MEMORY,
      "CUDA out of memory. The device or the host has no room left for the managed memory "
      "that ",
      operator_name_, " touches");
  TORCH_CHECK(error == UVMSIM_OK, "the simulated device refused ", operator_name_, " with error ",
              error);
}

void* Launch::view(const void* address) const {
  void* found = device_view(address);
  if (!found) fail_illegal_address(address);
  return found;
}

void Launch::synchronize() const {
  C10_CUDA_CHECK(cudaStreamSynchronize(stream_.stream()));
}

void Launch::fail_illegal_address(const void* address) const {
  throw c10::AcceleratorError(
      {__func__, __FILE__, static_cast<std::uint32_t>(__LINE__)}, cudaErrorIllegalAddress,
      c10::str("CUDA error: an illegal memory access was encountered\n", operator_name_,
               " touched ",
               address ? c10::str("address ", address, ", which ") : std::string("memory that "),
               "device ", static_cast<int>(device().index()), " cannot access"));
}

// An operator computes once, even if it submits several times.
uvmsim_arithmetic Launch::arithmetic() const {
  if (submitted_) return {.operations = 0, .type = arithmetic_.type, .continues = 1};
  return {.operations = arithmetic_.operations, .type = arithmetic_.type, .continues = 0};
}

}  // namespace uvm::sim_kernels
