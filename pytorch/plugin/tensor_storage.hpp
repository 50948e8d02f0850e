// Finds a tensor's storage, and the range of the storage that the tensor's elements cover.
#pragma once

#include <cstddef>

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include "pytorch/plugin/shared_storage.hpp"

namespace uvm::torch_plugin {

inline c10::StorageImpl& storage_of(const at::Tensor& tensor) {
  return *tensor.storage().unsafeGetStorageImpl();
}

inline bool is_host_or_cuda(c10::Device device) {
  return device.is_cpu() || device.is_cuda();
}

// Returns the range from the first element to the last.
inline StorageRange range_of(const at::Tensor& self) {
  return {static_cast<size_t>(self.storage_offset()) * self.itemsize(),
          at::detail::computeStorageNbytes(self.sizes(), self.strides(), self.itemsize())};
}

}  // namespace uvm::torch_plugin
