// Device moves. `aten::_to_copy` is what Tensor.to, .cuda() and .cpu() come down to; where only the
// device changes and the tensor is a whole block of ours, the result shares the block copy-on-write
// instead of copying it.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include <uvmalloc/allocator/statistics.hpp>
#include <uvmalloc/pytorch/plugin/shared_storage.hpp>

namespace uvm::torch_plugin {

// Why a move of `self` to `device` must copy; nullopt: it can share.
struct MoveRequest {
  std::optional<c10::ScalarType> dtype;
  std::optional<c10::Layout> layout;
  std::optional<c10::Device> device;
  std::optional<bool> pin_memory;
  std::optional<c10::MemoryFormat> memory_format;
  Sharing sharing = Sharing::kCopyOnWrite;
};
std::optional<CopyReason> reason_to_copy(const at::Tensor& self, const MoveRequest& request);

}  // namespace uvm::torch_plugin
