#include "pytorch/plugin/operator_uses.hpp"

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/util/SmallVector.h>

#include <uvmalloc/use_range.hpp>
#include "pytorch/interpose/torch_hooks.hpp"
#include "pytorch/plugin/device_pools.hpp"
#include "pytorch/plugin/facades.hpp"

namespace uvm::torch_plugin {
namespace {

// If one matrix of a product has at most this many rows, the kernel reads the other only once.
constexpr std::int64_t kFewRows = 16;

// The tensors in which an operator touches each byte only once.
enum class Once : std::uint8_t {
  kNone,
  kRead,          // tensors that the operator only reads
  kSecondMatrix,  // the second matrix of a product, if the first has few rows
  kElements,      // tensors with the shape of the result; smaller tensors are read repeatedly
};

struct Accesses {
  std::vector<std::uint8_t> by_argument;  // empty: the operator is ignored
  Once once = Once::kNone;
};
using Uses = c10::SmallVector<live::UseRange, 16>;

Once touches_once(const c10::OperatorHandle& op) {
  static const std::set<std::string> lookups = {"aten::embedding", "aten::index_select",
                                                "aten::gather"};
  static const std::set<std::string> products = {"aten::mm", "aten::addmm", "aten::bmm",
                                                 "aten::baddbmm"};
  static const std::set<std::string> steps = {"aten::_fused_adam_", "aten::_fused_adamw_",
                                              "aten::_fused_sgd_", "aten::_fused_adagrad_"};
  const std::string& name = op.operator_name().name;
  if (products.contains(name)) return Once::kSecondMatrix;
  if (lookups.contains(name)) return Once::kRead;
  const bool is_optimizers = name.starts_with("aten::_foreach_") || steps.contains(name);
  return is_optimizers || op.hasTag(at::Tag::pointwise) ? Once::kElements : Once::kNone;
}

// Derives the accesses from the operator's schema. There are none for a view, which
// launches no kernel, or for an operator without a CUDA kernel, whose inner operators are noted.
Accesses accesses_of(const at::RecordFunction& call) {
  const auto name = call.operator_name();
  if (!name || name->getNamespace() == "uvmalloc") return {};
  const auto op = c10::Dispatcher::singleton().findOp(*name);
  if (!op || !op->hasSchema() || !op->hasKernelForDispatchKey(c10::DispatchKey::CUDA)) return {};
  const auto is_written = [](const c10::Argument& argument) {
    return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
  };
  for (const c10::Argument& result : op->schema().returns()) {
    if (result.alias_info() != nullptr && !is_written(result)) return {};
  }
  Accesses accesses{.by_argument = {}, .once = touches_once(*op)};
  for (const c10::Argument& argument : op->schema().arguments()) {
    const bool is_only_written = argument.is_out();
    std::uint8_t access = is_only_written ? 0 : live::kReads;
    if (is_written(argument)) access |= live::kWrites;
    accesses.by_argument.push_back(access);
  }
  return accesses;
}

// Torch never frees the strings of a schema, so their addresses identify the operator.
const Accesses& known_accesses_of(const at::RecordFunction& call) {
  using Key = std::pair<const char*, const char*>;
  thread_local std::map<Key, Accesses> known;
  const Key key{call.name(), call.overload_name()};
  const auto found = known.find(key);
  if (found != known.end()) return found->second;
  return known.emplace(key, accesses_of(call)).first->second;
}

// Whether Python runs the tensor's operators, as for a FakeTensor or a DTensor, or its sizes are
// symbols. Its operators launch kernels only on inner tensors, or when Python calls them again;
// both are noted. A question about its sizes may change what a tracer records.
bool is_made_in_python(const at::Tensor& tensor) {
  constexpr auto kPython = c10::DispatchKey::Python;
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  return tensor.defined() &&
         (impl.has_symbolic_sizes_strides() ||
          (impl.key_set().has(kPython) && !c10::impl::tls_is_dispatch_key_excluded(kPython)));
}

bool has_tensors_made_in_python(c10::ArrayRef<const c10::IValue> arguments) {
  return std::ranges::any_of(arguments, [](const c10::IValue& argument) {
    if (argument.isTensor()) return is_made_in_python(argument.toTensor());
    return argument.isList() &&
           std::ranges::any_of(argument.toListRef(), [](const c10::IValue& element) {
             return element.isTensor() && is_made_in_python(element.toTensor());
           });
  });
}

// Whether the tensor has sizes and strides; a nested tensor has those of its parts instead.
bool has_one_shape(const at::Tensor& tensor) {
  return tensor.defined() && !tensor.is_nested();
}

// Whether an element-wise operator passes over the tensor only once. A smaller tensor is read again
// for each part of the larger tensor.
bool has_shape_of_result(const at::Tensor& tensor, c10::ArrayRef<const c10::IValue> arguments) {
  return has_one_shape(tensor) && tensor.is_non_overlapping_and_dense() &&
         std::ranges::all_of(arguments, [&](const c10::IValue& other) {
           if (!other.isTensor() || !other.toTensor().defined()) return true;
           return has_one_shape(other.toTensor()) &&
                  at::is_expandable_to(other.toTensor().sizes(), tensor.sizes());
         });
}

// List arguments belong to an optimizer's step, which passes over all tensors in the lists once.
bool is_touched_once(Once once, c10::ArrayRef<const c10::IValue> arguments, std::size_t argument,
                     std::uint8_t access) {
  switch (once) {
    case Once::kNone:
      return false;
    case Once::kRead:
      return access == live::kReads;
    case Once::kSecondMatrix: {
      if (access != live::kReads || argument == 0 || !arguments[argument - 1].isTensor())
        return false;
      const at::Tensor& rows = arguments[argument - 1].toTensor();
      return has_one_shape(rows) && rows.dim() >= 2 && rows.size(-2) <= kFewRows;
    }
    case Once::kElements:
      return !arguments[argument].isTensor() ||
             has_shape_of_result(arguments[argument].toTensor(), arguments);
  }
  return false;
}

void add_use(const at::Tensor& tensor, std::uint8_t access, Uses* uses,
             std::optional<c10::DeviceIndex>* device) {
  if (!tensor.defined() || !tensor.is_cuda() || !tensor.has_storage()) return;
  const c10::Storage& storage = tensor.storage();
  const void* base = storage.data();  // only reads, so a shared storage makes no copy
  if (base == nullptr) return;
  const auto offset = static_cast<std::size_t>(tensor.storage_offset()) * tensor.itemsize();
  const std::size_t size_bytes =
      has_one_shape(tensor)
          ? at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize())
          : storage.nbytes() - offset;
  if (size_bytes == 0) return;
  if (!*device) *device = tensor.get_device();
  uses->push_back({address_of(base) + offset, size_bytes, access});
}

void add_uses(const c10::IValue& argument, std::uint8_t access, Uses* uses,
              std::optional<c10::DeviceIndex>* device) {
  if (argument.isTensor()) {
    add_use(argument.toTensor(), access, uses, device);
  } else if (argument.isList()) {
    for (const c10::IValue& element : argument.toListRef()) {
      if (element.isTensor()) add_use(element.toTensor(), access, uses, device);
    }
  }
}

std::atomic<int> captures{0};  // captures of graphs that are running, or have failed unnoticed
std::atomic<DevicePools*> capturing_pools{nullptr};

// Whether the current stream is being captured. Calls the driver only during captures.
bool is_captured_here() {
  return captures.load(std::memory_order_relaxed) != 0 &&
         c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
}

struct OperatorUses {
  Uses uses;
  std::optional<c10::DeviceIndex> device;  // empty: the operator uses no memory of a device
};

OperatorUses arguments_of(const at::RecordFunction& call) {
  const Accesses& accesses = known_accesses_of(call);
  const auto arguments = call.inputs();
  OperatorUses noted;
  if (accesses.by_argument.empty() || has_tensors_made_in_python(arguments)) return noted;
  for (std::size_t i = 0; i < arguments.size() && i < accesses.by_argument.size(); ++i) {
    std::uint8_t access = accesses.by_argument[i];
    if (is_touched_once(accesses.once, arguments, i, access)) access |= live::kOnce;
    add_uses(arguments[i], access, &noted.uses, &noted.device);
  }
  return noted;
}

// The results are in new blocks, which the allocator knows, unless a graph is captured: each replay
// writes them again.
OperatorUses results_of(const at::RecordFunction& call) {
  const std::vector<c10::IValue> results = call.outputs();
  OperatorUses noted;
  if (known_accesses_of(call).by_argument.empty() ||
      has_tensors_made_in_python(c10::ArrayRef<const c10::IValue>(results.data(), results.size())))
    return noted;
  for (const c10::IValue& result : results)
    add_uses(result, live::kWrites, &noted.uses, &noted.device);
  return noted;
}

// Both callbacks see all operators while they are added, in a capture and beside it.
std::unique_ptr<at::ObserverContext> note_for_plan(const at::RecordFunction& call) {
  CachingManagedAllocator* ours = process_allocator();
  if (ours == nullptr || !ours->kernel_uses().wanted() || is_captured_here()) return nullptr;
  const OperatorUses noted = arguments_of(call);
  if (!noted.device) return nullptr;
  ours->kernel_uses().note(*noted.device, current_stream(*noted.device),
                           {noted.uses.data(), noted.uses.size()}, live::Launch::kKernel);
  return nullptr;
}

void note_captured(const OperatorUses& noted, bool has_run) {
  if (!noted.device) return;
  uvmalloc_note_captured_operator(*noted.device, current_stream(*noted.device), noted.uses.data(),
                                  noted.uses.size(), has_run);
}

std::unique_ptr<at::ObserverContext> begin_captured(const at::RecordFunction& call) {
  if (is_captured_here()) {
    note_captured(arguments_of(call), /*has_run=*/false);
  } else if (DevicePools* pools = capturing_pools.load(std::memory_order_acquire)) {
    pools->end_failed_captures();
  }
  return nullptr;
}

void end_captured(const at::RecordFunction& call, at::ObserverContext* /*context*/) {
  if (is_captured_here()) note_captured(results_of(call), /*has_run=*/true);
}

// A callback of torch that can be added and removed. Thread-safe.
class Watch {
 public:
  explicit Watch(at::RecordFunctionCallback callback) : callback_(std::move(callback)) {}

  void set(bool is_on) {
    const std::lock_guard lock(mutex_);
    if (is_on == (handle_ != at::INVALID_CALLBACK_HANDLE)) return;
    if (is_on) {
      handle_ = at::addGlobalCallback(callback_);
    } else {
      at::removeCallback(std::exchange(handle_, at::INVALID_CALLBACK_HANDLE));
    }
  }

 private:
  const at::RecordFunctionCallback callback_;
  std::mutex mutex_;
  at::CallbackHandle handle_ = at::INVALID_CALLBACK_HANDLE;
};

// Counts captures, which may overlap. Adds and removes the callback for captures.
void count_captures(int change) {
  static Watch watch(at::RecordFunctionCallback(begin_captured, end_captured)
                         .needsInputs(true)
                         .needsOutputs(true)
                         .scopes({at::RecordScope::FUNCTION}));
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  captures += change;
  watch.set(captures != 0);
}

}  // namespace

void begin_capture(DevicePools& pools) {
  capturing_pools.store(&pools, std::memory_order_release);
  count_captures(1);
}
void end_capture() {
  count_captures(-1);
}

void watch_operators_for(CachingManagedAllocator& allocator) {
  static Watch watch(at::RecordFunctionCallback(note_for_plan)
                         .needsInputs(true)
                         .scopes({at::RecordScope::FUNCTION}));
  allocator.kernel_uses().set_listener([](bool wants_uses) { watch.set(wants_uses); });
}

}  // namespace uvm::torch_plugin
