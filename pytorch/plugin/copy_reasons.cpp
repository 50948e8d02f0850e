#include "pytorch/plugin/copy_reasons.hpp"

#include <cstdint>

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>

#include "pytorch/plugin/conversion.hpp"
#include "pytorch/plugin/facades.hpp"
#include "pytorch/plugin/region.hpp"
#include "pytorch/plugin/tensor_storage.hpp"

namespace uvm::torch_plugin {
namespace {

// From 2.15 on, torch has no named tensors.
template <class Tensor>
bool is_named(const Tensor& tensor) {
  if constexpr (requires { tensor.has_names(); }) return tensor.has_names();
  return false;
}

// Returns whether a tensor that shares the memory has the strides that a copy would have. A copy of
// a view with gaps is dense.
bool strides_survive(const at::Tensor& self, const TensorMove& request) {
  const auto format = request.memory_format.value_or(c10::MemoryFormat::Preserve);
  if (format != c10::MemoryFormat::Preserve) return self.is_contiguous(format);
  return request.sharing == Sharing::kAlias || self.is_non_overlapping_and_dense();
}

bool covers_storage(const at::Tensor& self) {
  return self.storage_offset() == 0 && self.storage().nbytes() == range_of(self).size_bytes;
}

// Returns why a view of a part of a storage must be copied, or nullopt if it can be shared. Torch
// aligns its copies, and kernels choose their algorithm by alignment.
std::optional<CopyReason> reason_to_copy_part(const at::Tensor& self, const TensorMove& request) {
  constexpr size_t kHostAlignment = 64;
  constexpr size_t kDeviceAlignment = 512;
  if (self.numel() == 0) return CopyReason::kSmallBlock;
  if (request.sharing == Sharing::kAlias) return std::nullopt;
  if (!kPartsCanBeShared) return CopyReason::kPartialStorage;
  StorageRange range = range_of(self);
  if (range.size_bytes < allocator().inspection().configuration().host_threshold_bytes)
    return CopyReason::kSmallBlock;
  size_t alignment = request.device->is_cuda() ? kDeviceAlignment : kHostAlignment;
  auto address = reinterpret_cast<std::uintptr_t>(self.const_data_ptr());
  return address % alignment != 0 ? std::optional(CopyReason::kPartialStorage) : std::nullopt;
}

// Whether the current stream is being captured. Torch's query creates a context, so the device must
// have one already.
bool is_capturing() {
  return allocator().inspection().runtime().has_context(c10::cuda::current_device()) &&
         c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
}

}  // namespace

std::optional<CopyReason> reason_to_copy(const at::Tensor& self, const TensorMove& request) {
  const Configuration& configuration = allocator().inspection().configuration();
  bool converts = (request.dtype && *request.dtype != self.scalar_type()) ||
                  (request.layout && *request.layout != c10::kStrided) ||
                  request.pin_memory.value_or(false);
  if (converts) return CopyReason::kConversion;
  if (effective_policy() == Policy::kOff) return CopyReason::kMode;
  if (self.layout() != c10::kStrided || !self.has_storage() || self.is_conj() || self.is_neg() ||
      self.is_quantized() || is_named(self) || !strides_survive(self, request)) {
    return CopyReason::kLayout;
  }
  c10::StorageImpl& storage = storage_of(self);
  const c10::DataPtr& data = storage._mutable_data_ptr_no_checks();
  // A conversion will make this memory movable.
  const bool early = is_early(storage);
  const auto block = early ? std::nullopt : allocator().find(data.get());
  // A small block shares its pages with other blocks, which do not move. A copy costs less than
  // moving the pages back and forth. An alias must be the same memory, so it is always shared.
  bool alias = request.sharing == Sharing::kAlias;
  if (!early && (!block || (!block->movable && !alias))) {
    bool small = storage.nbytes() < configuration.host_threshold_bytes || block;
    return small ? CopyReason::kSmallBlock : CopyReason::kForeign;
  }
  if (!covers_storage(self)) {
    if (std::optional<CopyReason> reason = reason_to_copy_part(self, request)) return reason;
  }
  if (const auto reason = reason_not_to_share(storage, range_of(self), request.sharing)) {
    return reason;
  }
  // A conversion would free the memory that the exported pointer refers to.
  if (early && is_early_and_exported(storage)) return CopyReason::kExported;
  if (request.device->is_cuda() &&
      request.device->index() >= allocator().inspection().runtime().device_count()) {
    return CopyReason::kForeign;  // torch then reports that the device does not exist
  }
  if (is_capturing()) return CopyReason::kCapturing;
  return std::nullopt;
}

}  // namespace uvm::torch_plugin
