#include "sim/torch/operator_plan.hpp"

#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <array>
#include <string_view>

#include <uvmalloc/sim/uvmsim.h>

namespace uvm::sim_kernels {
namespace {

// Allocation, metadata and book-keeping: these operators launch no kernel, or only copies by the
// runtime. Operators that return a view by their schema are native too.
constexpr std::array<std::string_view, 15> kNativeOperators = {
    "aten::empty.memory_format",
    "aten::empty_strided",
    "aten::resize_",
    "aten::set_",
    "aten::set_.source_Storage",
    "aten::set_.source_Storage_storage_offset",
    "aten::set_.source_Tensor",
    "aten::record_stream",
    "aten::is_set_to",
    "aten::_local_scalar_dense",
    "aten::_efficientzerotensor",
    "aten::_nested_tensor_from_mask",
    "aten::_nested_tensor_from_mask_left_aligned",
    "aten::_use_miopen_ctc_loss",
    "aten::_use_miopen_ctc_loss.Tensor",
};

// Native operators on sparse tensors, and operators that PyTorch composes of operators on indices
// and values. A copy may be from or to the host.
constexpr std::array<std::string_view, 17> kNativeSparseOperators = {
    "aten::empty.memory_format",
    "aten::empty_like",
    "aten::_sparse_coo_tensor_with_dims",
    "aten::_sparse_coo_tensor_with_dims_and_tensors",
    "aten::sparse_resize_",
    "aten::sparse_resize_and_clear_",
    "aten::resize_as_sparse_",
    "aten::_coalesced_",
    "aten::is_coalesced",
    "aten::_nnz",
    "aten::_dimI",
    "aten::_dimV",
    "aten::sparse_dim",
    "aten::dense_dim",
    "aten::clone",
    "aten::copy_",
    "aten::copy_sparse_to_sparse_",
};

// Composites without a CUDA kernel in PyTorch. If they have a CUDA kernel, it belongs to another
// plugin and is not replaced.
constexpr std::array<std::string_view, 5> kPluginOperators = {
    "aten::_to_copy", "aten::clone", "aten::_lazy_clone", "aten::is_pinned", "aten::_pin_memory",
};

// Composite operators that choose a vendor's library by their arguments' device.
constexpr std::array<std::string_view, 1> kForcedOperators = {"aten::convolution"};

// Arguments that the operator writes, although its schema does not say so.
struct UndeclaredWrites {
  std::string_view name;
  std::array<std::string_view, 2> arguments;
};
constexpr std::array<UndeclaredWrites, 2> kUndeclaredWrites = {{
    {"aten::native_batch_norm", {"running_mean", "running_var"}},
    {"aten::native_batch_norm.out", {"running_mean", "running_var"}},
}};

// In-place operators that do not read the old contents.
constexpr std::array<std::string_view, 9> kOverwritingOperators = {
    "zero_",        "fill_",      "normal_",     "uniform_",   "random_",
    "exponential_", "geometric_", "log_normal_", "bernoulli_",
};

// Operators that accept host tensors next to device tensors: indices, optimizer steps, scales.
constexpr std::array<std::string_view, 7> kMixedDevicePrefixes = {
    "index.", "_index_put_impl_",      "_unsafe_index", "_foreach_", "_fused_",
    "_amp_",  "split_with_sizes_copy",
};

template <typename Range, typename Value>
bool contains(const Range& range, const Value& value) {
  return std::find(std::begin(range), std::end(range), value) != std::end(range);
}

bool is_write(const c10::Argument& argument) {
  return argument.alias_info() && argument.alias_info()->isWrite();
}

bool returns_view(const c10::FunctionSchema& schema) {
  return std::any_of(
      schema.returns().begin(), schema.returns().end(),
      [](const c10::Argument& result) { return result.alias_info() && !is_write(result); });
}

bool writes_undeclared(std::string_view name, const std::string& argument) {
  return std::any_of(kUndeclaredWrites.begin(), kUndeclaredWrites.end(),
                     [&](const UndeclaredWrites& entry) {
                       return entry.name == name && contains(entry.arguments, argument);
                     });
}

int access_of(std::string_view name, std::string_view base_name, const c10::Argument& argument) {
  if (!is_write(argument)) {
    return writes_undeclared(name, argument.name()) ? UVMSIM_READ | UVMSIM_WRITE : UVMSIM_READ;
  }
  const bool overwritten = argument.is_out() || contains(kOverwritingOperators, base_name);
  return overwritten ? UVMSIM_WRITE : UVMSIM_READ | UVMSIM_WRITE;
}

DeviceCheck device_check_of(const c10::OperatorHandle& op, std::string_view local_name) {
  for (const std::string_view prefix : kMixedDevicePrefixes) {
    if (local_name.starts_with(prefix)) return DeviceCheck::kNone;
  }
  return op.hasTag(at::Tag::pointwise) ? DeviceCheck::kPointwise : DeviceCheck::kStrict;
}

bool indexes_by_tensors(std::string_view local_name) {
  return local_name.starts_with("index.") || local_name.starts_with("_unsafe_index.") ||
         local_name.starts_with("_index_put_impl_");
}

// Returns whether the host waits for the operator, because the value or shape of its result depends
// on data. Excludes indexing, which waits only for masks.
bool host_waits_for(const c10::OperatorHandle& op, std::string_view local_name) {
  if (local_name == "index.Tensor") return false;
  if (op.hasTag(at::Tag::dynamic_output_shape) || op.hasTag(at::Tag::data_dependent_output))
    return true;
  const auto& results = op.schema().returns();
  return std::any_of(results.begin(), results.end(), [](const c10::Argument& result) {
    const c10::TypeKind kind = result.type()->kind();
    return kind == c10::TypeKind::BoolType || kind == c10::TypeKind::NumberType;
  });
}

bool is_native(const std::string& name, c10::DispatchKey key) {
  if (key == c10::DispatchKey::SparseCUDA) return contains(kNativeSparseOperators, name);
  return contains(kNativeOperators, name) || contains(kPluginOperators, name);
}

c10::DispatchKey cpu_key_of(c10::DispatchKey key) {
  return key == c10::DispatchKey::SparseCUDA ? c10::DispatchKey::SparseCPU : c10::DispatchKey::CPU;
}

}  // namespace

Route route_of(const c10::OperatorHandle& op, c10::DispatchKey key) {
  const std::string name = c10::toString(op.operator_name());
  if (!name.starts_with("aten::")) return Route::kNone;
  const bool forced = key == c10::DispatchKey::CUDA && contains(kForcedOperators, name);
  if (!forced && !op.hasKernelForDispatchKey(key)) return Route::kNone;
  if (is_native(name, key) || returns_view(op.schema())) return Route::kNative;
  return op.hasComputedKernelForDispatchKey(cpu_key_of(key)) ? Route::kRedirect
                                                             : Route::kUnavailable;
}

OperatorPlan plan_of(const c10::OperatorHandle& op, c10::DispatchKey key) {
  constexpr std::string_view kNamespace = "aten::";
  const c10::OperatorName& operator_name = op.operator_name();
  const std::string base_name = operator_name.name.substr(kNamespace.size());

  OperatorPlan plan;
  plan.name = c10::toString(operator_name);
  plan.method = "wrapper_CUDA_" + operator_name.overload_name + "_" + base_name;
  const std::string_view local_name = std::string_view(plan.name).substr(kNamespace.size());
  const auto& arguments = op.schema().arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    plan.accesses.push_back(access_of(plan.name, base_name, arguments[i]));
    if (arguments[i].name() == "generator") plan.generator = i;
    if (arguments[i].name() == "indices" && indexes_by_tensors(local_name)) plan.masks = i;
  }
  plan.device_check = device_check_of(op, local_name);
  plan.host_waits = host_waits_for(op, local_name);
  plan.cpu_key = cpu_key_of(key);
  return plan;
}

}  // namespace uvm::sim_kernels
