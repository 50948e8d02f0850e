// What a program may ask of the memory of its tensors, as operators: no module that depends on
// Python's ABI. Pointers are taken as constants, so nothing is copied and no block counts as
// exported.
#include <string>

#include <ATen/EmptyTensor.h>
#include <ATen/core/Dict.h>
#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <uvmalloc/allocator/process_allocator.hpp>

namespace uvm::torch_plugin {
namespace {

struct Range {
  const char* begin = nullptr;
  std::size_t size_bytes = 0;
};

// From the tensor's first element to its last.
Range range_of(const at::Tensor& self) {
  if (!self.has_storage() || self.numel() == 0) return {};
  std::size_t size_bytes =
      at::detail::computeStorageNbytes(self.sizes(), self.strides(), self.itemsize());
  return {static_cast<const char*>(self.const_data_ptr()), size_bytes};
}

bool prefetch(const at::Tensor& self, at::Device device) {
  CachingManagedAllocator* ours = process_allocator();
  const Range range = range_of(self);
  if (ours == nullptr || range.size_bytes == 0) return false;
  TORCH_CHECK(device.is_cpu() || device.is_cuda(), "uvmalloc.prefetch: the device is ", device,
              "; accepted: cpu, cuda");
  if (device.is_cpu()) {
    const int from = self.is_cuda() ? self.get_device() : 0;
    c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream(static_cast<int8_t>(from));
    return ours->prefetch(range.begin, range.size_bytes, Place::host(), from,
                          reinterpret_cast<StreamHandle>(stream.stream()));
  }
  const int to = device.has_index() ? device.index() : c10::cuda::current_device();
  TORCH_CHECK(to < ours->runtime().device_count(), "uvmalloc.prefetch: there is no cuda:", to,
              "; there are ", ours->runtime().device_count(), " devices");
  c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream(static_cast<int8_t>(to));
  return ours->prefetch(range.begin, range.size_bytes, Place::device(to), to,
                        reinterpret_cast<StreamHandle>(stream.stream()));
}

c10::Dict<std::string, int64_t> residency(const at::Tensor& self) {
  c10::Dict<std::string, int64_t> bytes;
  CachingManagedAllocator* ours = process_allocator();
  const Range range = range_of(self);
  if (ours == nullptr || range.size_bytes == 0) return bytes;
  for (const auto& [place, at_place] : ours->residency(range.begin, range.size_bytes)) {
    bytes.insert(to_string(place), static_cast<int64_t>(at_place));
  }
  return bytes;
}

}  // namespace
}  // namespace uvm::torch_plugin

TORCH_LIBRARY_FRAGMENT(uvmalloc, library) {
  library.def("prefetch(Tensor self, Device device) -> bool");
  library.def("residency(Tensor self) -> Dict(str, int)");
}

TORCH_LIBRARY_IMPL(uvmalloc, CPU, library) {
  library.impl("prefetch", &uvm::torch_plugin::prefetch);
  library.impl("residency", &uvm::torch_plugin::residency);
}
TORCH_LIBRARY_IMPL(uvmalloc, CUDA, library) {
  library.impl("prefetch", &uvm::torch_plugin::prefetch);
  library.impl("residency", &uvm::torch_plugin::residency);
}
