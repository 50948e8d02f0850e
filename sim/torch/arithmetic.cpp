#include "sim/torch/arithmetic.hpp"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <cstddef>

#include "sim/torch/operator_values.hpp"

namespace uvm::sim_kernels {
namespace {

using Arguments = c10::ArrayRef<c10::IValue>;

// Returns the operation type of a product. Only products, on tensor cores, use types narrower than
// float32; other operators compute as float32.
int product_type(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kDouble:
    case at::kComplexDouble:
      return UVMSIM_FLOAT64;
    case at::kHalf:
    case at::kBFloat16:
      return UVMSIM_FLOAT16;
    case at::kFloat8_e4m3fn:
    case at::kFloat8_e5m2:
      return UVMSIM_FLOAT8;
    default:
      return UVMSIM_FLOAT32;
  }
}

int with_tensor_cores(int type, bool allowed) {
  return type == UVMSIM_FLOAT32 && allowed ? UVMSIM_TENSOR_FLOAT32 : type;
}

bool is_tensor(Arguments arguments, std::size_t i, std::int64_t least_dimensions) {
  return i < arguments.size() && arguments[i].isTensor() && arguments[i].toTensor().defined() &&
         arguments[i].toTensor().dim() >= least_dimensions;
}

// Counts only the stored elements of a sparse tensor.
std::uint64_t elements_of(const at::Tensor& tensor) {
  return static_cast<std::uint64_t>(tensor.is_sparse() ? sparse_parts(tensor).values().numel()
                                                       : tensor.numel());
}

// Counts one multiplication and one addition for each element of `left` and each column of `right`.
Arithmetic matrix_product(Arguments arguments, std::size_t left, std::size_t right) {
  if (!is_tensor(arguments, left, 1) || !is_tensor(arguments, right, 1)) return {};
  const at::Tensor& a = arguments[left].toTensor();
  const at::Tensor& b = arguments[right].toTensor();
  const std::int64_t columns = b.dim() == 1 ? 1 : b.size(-1);
  return {2 * elements_of(a) * static_cast<std::uint64_t>(columns),
          with_tensor_cores(product_type(a), at::globalContext().allowTF32CuBLAS())};
}

std::int64_t list_at(const c10::IValue& list, std::size_t i) {
  const std::vector<std::int64_t> values = list.toIntVector();
  return values.empty() ? 1 : values[std::min(i, values.size() - 1)];
}

// Returns the operations of one pass of a convolution: each result needs all elements of a filter.
// For a transposed convolution, pass the elements of the input as `results`.
std::uint64_t convolution_pass(std::uint64_t results, const at::Tensor& weight) {
  const std::int64_t filters = std::max<std::int64_t>(weight.size(0), 1);
  return 2 * results * static_cast<std::uint64_t>(weight.numel() / filters);
}

// Arguments: input, weight, bias, stride, padding, dilation, transposed, ...
Arithmetic convolution(Arguments arguments) {
  if (arguments.size() < 7 || !is_tensor(arguments, 0, 2) || !is_tensor(arguments, 1, 2)) return {};
  const at::Tensor& input = arguments[0].toTensor();
  const at::Tensor& weight = arguments[1].toTensor();
  const int type = with_tensor_cores(product_type(input), at::globalContext().allowTF32CuDNN());
  if (arguments[6].toBool())
    return {convolution_pass(static_cast<std::uint64_t>(input.numel()), weight), type};
  std::uint64_t results =
      static_cast<std::uint64_t>(weight.size(0)) *
      static_cast<std::uint64_t>(input.dim() == weight.dim() ? input.size(0) : 1);
  for (std::int64_t i = 2; i < weight.dim(); ++i) {
    const auto at = static_cast<std::size_t>(i - 2);
    const std::int64_t reach = list_at(arguments[5], at) * (weight.size(i) - 1) + 1;
    const std::int64_t padded = input.size(i - weight.dim()) + 2 * list_at(arguments[4], at);
    const std::int64_t places =
        (padded - reach) / std::max<std::int64_t>(list_at(arguments[3], at), 1) + 1;
    results *= static_cast<std::uint64_t>(std::max<std::int64_t>(places, 0));
  }
  return {convolution_pass(results, weight), type};
}

// Arguments: grad_output, input, weight, ..., transposed (7), ..., output_mask (10). Counts one
// pass for each requested gradient of input and weight.
Arithmetic convolution_backward(Arguments arguments) {
  if (arguments.size() < 11 || !is_tensor(arguments, 0, 2) || !is_tensor(arguments, 1, 2) ||
      !is_tensor(arguments, 2, 2))
    return {};
  const at::Tensor& gradient = arguments[0].toTensor();
  const at::Tensor& input = arguments[1].toTensor();
  const at::Tensor& weight = arguments[2].toTensor();
  const bool transposed = arguments[7].toBool();
  const at::Tensor& results = transposed ? input : gradient;
  const auto wanted = arguments[10].toBoolList();
  std::uint64_t passes = 0;
  for (std::size_t i = 0; i < 2 && i < wanted.size(); ++i) passes += wanted[i] ? 1 : 0;
  return {passes * convolution_pass(static_cast<std::uint64_t>(results.numel()), weight),
          with_tensor_cores(product_type(gradient), at::globalContext().allowTF32CuDNN())};
}

// Arguments: query, key, value. Counts two products: queries with keys, and the resulting weights
// with values.
Arithmetic attention(Arguments arguments, std::size_t query, std::uint64_t products) {
  if (!is_tensor(arguments, query, 3) || !is_tensor(arguments, query + 1, 3)) return {};
  const at::Tensor& q = arguments[query].toTensor();
  const at::Tensor& k = arguments[query + 1].toTensor();
  return {
      products * 2 * static_cast<std::uint64_t>(q.numel()) * static_cast<std::uint64_t>(k.size(-2)),
      with_tensor_cores(product_type(q), at::globalContext().allowTF32CuBLAS())};
}

Arithmetic by_element(Arguments arguments) {
  Arithmetic result;
  for (const c10::IValue& argument : arguments) {
    std::uint64_t elements = 0;
    bool is_double = false;
    for_each_tensor(argument, [&](const at::Tensor& tensor) {
      if (!tensor.defined()) return;
      elements += elements_of(tensor);
      is_double = is_double || product_type(tensor) == UVMSIM_FLOAT64;
    });
    result.operations = std::max(result.operations, elements);
    if (is_double) result.type = UVMSIM_FLOAT64;
  }
  return result;
}

}  // namespace

Arithmetic arithmetic_of(std::string_view name, Arguments arguments) {
  std::string_view base = name.substr(0, name.find('.'));
  if (base.ends_with('_')) base.remove_suffix(1);  // the in-place form
  if (base == "mm" || base == "bmm" || base == "mv" || base == "dot" || base == "_int_mm" ||
      base == "_scaled_mm")
    return matrix_product(arguments, 0, 1);
  if (base == "addmm" || base == "baddbmm" || base == "addbmm" || base == "addmv" ||
      base == "_addmm_activation")
    return matrix_product(arguments, 1, 2);
  if (base == "convolution" || base == "convolution_overrideable" || base == "_convolution" ||
      base == "cudnn_convolution")
    return convolution(arguments);
  if (base.starts_with("convolution_backward")) return convolution_backward(arguments);
  if (base.starts_with("_scaled_dot_product")) {
    // The backward pass computes the weights again, and two gradients of each product.
    const bool is_backward = base.find("backward") != std::string_view::npos;
    return attention(arguments, is_backward ? 1 : 0, is_backward ? 5 : 2);
  }
  return by_element(arguments);
}

}  // namespace uvm::sim_kernels
