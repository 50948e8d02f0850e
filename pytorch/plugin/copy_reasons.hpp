// Decides whether a move of a tensor to another device must copy its bytes, and why.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include <uvmalloc/statistics.hpp>
#include "pytorch/plugin/shared_storage.hpp"

namespace uvm::torch_plugin {

struct TensorMove {
  std::optional<c10::ScalarType> dtype;
  std::optional<c10::Layout> layout;
  std::optional<c10::Device> device;
  std::optional<bool> pin_memory;
  std::optional<c10::MemoryFormat> memory_format;
  Sharing sharing = Sharing::kCopyOnWrite;
};

// Returns why a move must copy, or nullopt if the result can share the block. Changes nothing.
std::optional<CopyReason> reason_to_copy(const at::Tensor& self, const TensorMove& request);

}  // namespace uvm::torch_plugin
