// The bytes of a tensor's storage that the tensor spans, from its first to its last element.
#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>

#include <cstddef>

namespace uvm::sim_kernels {

inline std::size_t extent_bytes(const at::Tensor& tensor) {
  return at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize());
}

}  // namespace uvm::sim_kernels
