// Advice, prefetch and residency of tensors. These are operators, so that no module depends on
// Python's ABI. They take constant pointers, so nothing is copied and no block counts as exported.
#include <string>

#include <ATen/EmptyTensor.h>
#include <ATen/core/Dict.h>
#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "allocator/process/process_allocator.hpp"
#include "pytorch/plugin/facades.hpp"
#include "pytorch/plugin/region.hpp"

namespace uvm::torch_plugin {
namespace {

struct BlockRange {
  const char* begin = nullptr;
  std::size_t size_bytes = 0;
};

// Returns the range from the tensor's first element to its last.
BlockRange block_range_of(const at::Tensor& self) {
  if (!self.has_storage() || self.numel() == 0) return {};
  std::size_t size_bytes =
      at::detail::computeStorageNbytes(self.sizes(), self.strides(), self.itemsize());
  return {static_cast<const char*>(self.const_data_ptr()), size_bytes};
}

// Returns the place of `device`. If the device does not exist, throws a c10::Error that names
// `function`.
Place place_for(const char* function, at::Device device) {
  TORCH_CHECK(device.is_cpu() || device.is_cuda(), function, ": the device is ", device,
              "; accepted: cpu, cuda");
  if (device.is_cpu()) return Place::host();
  const int index = device.has_index() ? device.index() : c10::cuda::current_device();
  const int count = allocator().inspection().runtime().device_count();
  TORCH_CHECK(index < count, function, ": cuda:", index, " does not exist; devices: ", count);
  return Place::device(index);
}

bool prefetch(const at::Tensor& self, at::Device device) {
  CachingManagedAllocator* ours = process_allocator();
  const BlockRange range = block_range_of(self);
  if (ours == nullptr || range.size_bytes == 0 || !ours->find(range.begin)) return false;
  const Place place = place_for("uvmalloc.prefetch", device);
  const PolicyScope policy;
  if (device.is_cpu()) {
    // The tensor's device or, for a CPU tensor, the device that its memory was allocated for.
    const int from = self.is_cuda() ? self.get_device() : ours->find(range.begin)->device;
    return ours->prefetch(range.begin, range.size_bytes, place, from,
                          current_stream(static_cast<c10::DeviceIndex>(from)));
  }
  return ours->prefetch(range.begin, range.size_bytes, place, place.index,
                        current_stream(static_cast<c10::DeviceIndex>(place.index)));
}

bool advise(const at::Tensor& self, std::optional<at::Device> preferred,
            std::optional<at::Device> accessed_by, std::optional<bool> read_mostly) {
  CachingManagedAllocator* ours = process_allocator();
  const BlockRange range = block_range_of(self);
  if (ours == nullptr || range.size_bytes == 0) return false;
  const char* name = "uvmalloc.advise";
  WantedPlacement wanted{.read_mostly = read_mostly};
  if (preferred) wanted.preferred = place_for(name, *preferred);
  if (accessed_by) wanted.accessed_by = place_for(name, *accessed_by);
  const PolicyScope policy;
  if (!ours->advise(range.begin, wanted)) return false;
  note_advised(ours->find(range.begin)->base);
  return true;
}

c10::Dict<std::string, int64_t> residency(const at::Tensor& self, bool exact) {
  c10::Dict<std::string, int64_t> bytes;
  CachingManagedAllocator* ours = process_allocator();
  const BlockRange range = block_range_of(self);
  if (ours == nullptr || range.size_bytes == 0) return bytes;
  const Inspection inspection = ours->inspection();
  for (const auto& [place, at_place] :
       exact ? inspection.exact_residency(range.begin, range.size_bytes)
             : inspection.residency(range.begin, range.size_bytes)) {
    bytes.insert(to_string(place), static_cast<int64_t>(at_place));
  }
  return bytes;
}

}  // namespace
}  // namespace uvm::torch_plugin

TORCH_LIBRARY_FRAGMENT(uvmalloc, library) {
  library.def(
      "advise(Tensor self, Device? preferred, Device? accessed_by, bool? read_mostly) -> bool");
  library.def("prefetch(Tensor self, Device device) -> bool");
  library.def("residency(Tensor self, bool exact=False) -> Dict(str, int)");
}

TORCH_LIBRARY_IMPL(uvmalloc, CPU, library) {
  library.impl("advise", &uvm::torch_plugin::advise);
  library.impl("prefetch", &uvm::torch_plugin::prefetch);
  library.impl("residency", &uvm::torch_plugin::residency);
}
TORCH_LIBRARY_IMPL(uvmalloc, CUDA, library) {
  library.impl("advise", &uvm::torch_plugin::advise);
  library.impl("prefetch", &uvm::torch_plugin::prefetch);
  library.impl("residency", &uvm::torch_plugin::residency);
}
