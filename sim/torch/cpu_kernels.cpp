#include "sim/torch/cpu_kernels.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "sim/torch/operator_values.hpp"

namespace uvm::sim_kernels {
namespace {

// The name is without "aten::", without the overload, and without the underscore of the in-place
// form.
bool is_slow_in_half(std::string_view name) {
  constexpr std::string_view kNamespace = "aten::";
  if (name.starts_with(kNamespace)) name.remove_prefix(kNamespace.size());
  if (name.ends_with('_')) name.remove_suffix(1);
  for (const std::string_view product :
       {"mm", "bmm", "addmm", "baddbmm", "addbmm", "_addmm_activation", "linear"}) {
    if (name == product) return true;
  }
  constexpr std::string_view kConvolution = "conv";
  return name.find(kConvolution) != std::string_view::npos && name.find("convert") == name.npos;
}

bool are_halves(const torch::jit::Stack& arguments) {
  bool are = true;
  for (const c10::IValue& argument : arguments) {
    for_each_tensor(argument,
                    [&](const at::Tensor& tensor) { are &= tensor.scalar_type() == at::kHalf; });
  }
  return are;
}

struct Rounded {
  at::Tensor half;
  at::Tensor computed;  // the tensor's values in float, or the kernel's result for the tensor
};

// If a result is also an argument, rounds the kernel's float values into the original half tensor.
// Other results become new half tensors.
c10::IValue rounded_result(const c10::IValue& result, const std::vector<Rounded>& arguments) {
  return map_tensors(result, [&](const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.scalar_type() != at::kFloat) return tensor;
    const auto written = std::ranges::find_if(
        arguments, [&](const Rounded& argument) { return argument.computed.is_same(tensor); });
    if (written == arguments.end()) return tensor.to(at::kHalf);
    if (written->half.sizes() != tensor.sizes()) written->half.resize_(tensor.sizes());
    written->half.copy_(tensor);
    return written->half;
  });
}

}  // namespace

void run_cpu_kernel(const c10::OperatorHandle& op, c10::DispatchKey key, torch::jit::Stack* stack) {
  const auto dispatch = [&] { op.redispatchBoxed(c10::DispatchKeySet(key), stack); };
  // Tensors of several types are passed on unchanged, so that the kernel refuses them.
  if (!is_slow_in_half(op.operator_name().name) || !are_halves(*stack)) {
    dispatch();
    return;
  }
  std::vector<Rounded> rounded;
  for (c10::IValue& argument : *stack) {
    argument = map_tensors(argument, [&](const at::Tensor& tensor) {
      if (!tensor.defined() || tensor.scalar_type() != at::kHalf) return tensor;
      rounded.push_back({tensor, tensor.to(at::kFloat)});
      return rounded.back().computed;
    });
  }
  dispatch();
  if (rounded.empty()) return;
  for (c10::IValue& result : *stack) result = rounded_result(result, rounded);
}

}  // namespace uvm::sim_kernels
