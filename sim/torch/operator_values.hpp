// Tensors within an operator's arguments and results.
#pragma once

#include <ATen/SparseTensorImpl.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <optional>

namespace uvm::sim_kernels {

// The rest of a message that begins with a kind of tensor.
inline constexpr const char* kUnavailable =
    " tensors are not available on the simulated device, which accepts strided and COO tensors";

// If the simulated device's operators do not accept the tensor, returns its kind for messages; else
// null.
inline const char* unavailable_kind_of(const at::Tensor& tensor) {
  if (tensor.is_nested()) return "nested";
  if (tensor.is_quantized()) return "quantized";
  if (tensor.is_sparse()) return nullptr;
  if (tensor.layout() != c10::kStrided) return "compressed sparse";
  return tensor.has_storage() ? nullptr : "opaque";
}

inline at::SparseTensorImpl& sparse_parts(const at::Tensor& tensor) {
  return *static_cast<at::SparseTensorImpl*>(tensor.unsafeGetTensorImpl());
}

// Calls `visit` for each strided tensor that holds bytes of `tensor`.
template <typename Visitor>
void for_each_part(const at::Tensor& tensor, const Visitor& visit) {
  if (!tensor.is_sparse()) {
    visit(tensor);
    return;
  }
  visit(sparse_parts(tensor).indices());
  visit(sparse_parts(tensor).values());
}

// Calls `visit` for each defined tensor of an argument or a result.
template <typename Visitor>
void for_each_tensor(const c10::IValue& value, const Visitor& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isTensorList() || value.isOptionalTensorList()) {
    for (const c10::IValue& element : value.toListRef()) {
      if (element.isTensor() && element.toTensor().defined()) visit(element.toTensor());
    }
  }
}

// Returns `value` with each tensor replaced by `convert(tensor)`.
template <typename Converter>
c10::IValue map_tensors(const c10::IValue& value, const Converter& convert) {
  if (value.isTensor())
    return value.toTensor().defined() ? c10::IValue(convert(value.toTensor())) : value;
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const c10::IValue& element : value.toListRef())
      list.push_back(convert(element.toTensor()));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const c10::IValue& element : value.toListRef()) {
      list.push_back(element.isTensor() ? std::optional(convert(element.toTensor()))
                                        : std::nullopt);
    }
    return list;
  }
  return value;
}

}  // namespace uvm::sim_kernels
