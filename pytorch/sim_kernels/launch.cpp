#include <uvmalloc/pytorch/sim_kernels/launch.hpp>

#include <ATen/EmptyTensor.h>
#include <c10/cuda/CUDAException.h>
#include <c10/util/Exception.h>
#include <cuda_runtime_api.h>

namespace uvm::sim_kernels {
namespace {

// The cost model: every operator is bound by memory. A launch takes as long as an empty kernel on
// current devices, and bytes move at one terabyte per second; arithmetic is free.
constexpr std::uint64_t kLaunchNs = 2000;
constexpr std::uint64_t kBytesPerNs = 1000;

}  // namespace

Launch::Launch(c10::Device device, std::string operator_name)
    : device_guard_(device),
      stream_(c10::cuda::getCurrentCUDAStream(device.index())),
      operator_name_(std::move(operator_name)) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  C10_CUDA_CHECK(cudaStreamIsCapturing(stream_.stream(), &status));
  TORCH_CHECK(status == cudaStreamCaptureStatusNone, operator_name_,
              ": CUDA graphs cannot capture PyTorch's operators on the simulated device");
}

void Launch::touch(const at::Tensor& tensor, int access) {
  const std::size_t size_bytes =
      at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize());
  if (size_bytes == 0) return;
  const auto* base = static_cast<const std::byte*>(tensor.storage().data());
  accesses_.push_back({base + tensor.storage_offset() * tensor.itemsize(), size_bytes, access});
}

void Launch::submit() {
  if (accesses_.empty()) return;
  if (const auto kernel = simulator().kernel) {
    const int error = kernel(device().index(), stream_.stream(), accesses_.data(), accesses_.size(),
                             duration_ns());
    if (error == UVMSIM_ERROR_ADDRESS) fail_illegal_address(nullptr);
    TORCH_CHECK_WITH(OutOfMemoryError, error != UVMSIM_ERROR_OUT_OF_MEMORY,
                     "CUDA out of memory. The device has no room left for the managed memory that ",
                     operator_name_, " touches");
    TORCH_CHECK(error == UVMSIM_OK, "the simulated device refused ", operator_name_, " with error ",
                error);
  }
  accesses_.clear();
  submitted_ = true;
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
               "device ", static_cast<int>(device().index()), " cannot reach"));
}

std::uint64_t Launch::duration_ns() const {
  std::uint64_t touched_bytes = 0;
  for (const uvmsim_access& access : accesses_) {
    const bool both = access.access == (UVMSIM_READ | UVMSIM_WRITE);
    touched_bytes += access.size_bytes * (both ? 2 : 1);
  }
  return (submitted_ ? 0 : kLaunchNs) + touched_bytes / kBytesPerNs;
}

}  // namespace uvm::sim_kernels
