#include "sim/torch/redirect.hpp"

#include <ATen/Functions.h>
#include <ATen/core/op_registration/adaption.h>
#include <c10/cuda/CUDAFunctions.h>

#include <exception>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/torch/captured_operator.hpp"
#include "sim/torch/cpu_alias.hpp"
#include "sim/torch/cpu_kernel_scope.hpp"
#include "sim/torch/cpu_kernels.hpp"
#include "sim/torch/launch.hpp"
#include "sim/torch/operator_values.hpp"
#include "sim/torch/random.hpp"
#include "sim/torch/sim_kernels.h"

namespace uvm::sim_kernels {
namespace {

bool on_cuda(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_cuda();
}

// Returns the device of the first CUDA tensor, else a requested device, else the current device.
c10::Device device_of(c10::ArrayRef<c10::IValue> arguments) {
  std::optional<c10::Device> device;
  for (const c10::IValue& argument : arguments) {
    for_each_tensor(argument, [&](const at::Tensor& tensor) {
      if (!device && on_cuda(tensor)) device = tensor.device();
    });
    if (!device && argument.isDevice() && argument.toDevice().is_cuda())
      device = argument.toDevice();
  }
  if (device && device->has_index()) return *device;
  return {c10::kCUDA, c10::cuda::current_device()};
}

struct CapturedResult {
  std::size_t index;  // index among the tensors that the operator returns
  at::Tensor tensor;
};

// One call of one operator.
class RedirectedCall {
 public:
  RedirectedCall(const c10::OperatorHandle& op, const OperatorPlan& plan, torch::jit::Stack* stack)
      : op_(op),
        plan_(plan),
        stack_(stack),
        arguments_(torch::jit::last(*stack, plan.accesses.size())),
        launch_(device_of(arguments_), plan.name) {
    constexpr std::string_view kNamespace = "aten::";
    launch_.compute(
        arithmetic_of(std::string_view(plan.name).substr(kNamespace.size()), arguments_));
  }

  void run() {
    for (std::size_t i = 0; i < arguments_.size(); ++i) check_devices(i);
    // Captures forbid host waits, so fail before any work is done.
    const bool host_waits = plan_.host_waits || is_indexed_by_mask();
    if (host_waits && launch_.is_capturing()) launch_.synchronize();
    for (std::size_t i = 0; i < arguments_.size(); ++i) materialize_written(i);
    aliases_.emplace(launch_);
    torch::jit::Stack cpu_stack;
    if (!launch_.is_capturing()) cpu_stack = cpu_arguments();
    for (std::size_t i = 0; i < arguments_.size(); ++i) touch(i);
    // Memory that a kernel overwrites must be resident before it runs. A kernel that only creates
    // tensors is reported when the addresses of these tensors are known, so that each operator is
    // one kernel.
    if (writes_arguments_) launch_.submit();
    if (launch_.is_capturing()) {
      cpu_stack = try_out();
    } else {
      compute(&cpu_stack);
    }
    return_results(cpu_stack);
    if (host_waits || aliases_->made_sparse()) launch_.synchronize();
  }

 private:
  bool is_written(std::size_t i) const { return plan_.accesses[i] & UVMSIM_WRITE; }

  // If an operator is indexed by a mask, the host waits to count the selected positions, except if
  // the operator writes one number that is on the host.
  bool is_indexed_by_mask() const {
    if (!plan_.masks) return false;
    bool masked = false;
    for_each_tensor(arguments_[*plan_.masks], [&](const at::Tensor& index) {
      masked |= index.scalar_type() == at::kBool || index.scalar_type() == at::kByte;
    });
    if (masked && is_written(0)) {
      const at::Tensor& values = arguments_[*plan_.masks + 1].toTensor();
      masked = values.is_cuda() || values.numel() != 1;
    }
    return masked;
  }

  void check_devices(std::size_t i) const {
    for_each_tensor(arguments_[i], [&](const at::Tensor& tensor) {
      const char* unavailable = tensor.is_cuda() ? unavailable_kind_of(tensor) : nullptr;
      TORCH_CHECK_NOT_IMPLEMENTED(!unavailable, plan_.name, ": ", unavailable, kUnavailable);
      if (plan_.device_check == DeviceCheck::kNone || tensor.device() == launch_.device()) return;
      if (tensor.dim() == 0 && !is_written(i)) return;
      TORCH_CHECK(plan_.device_check != DeviceCheck::kPointwise,
                  "Expected all tensors to be on the same device, but found at least two devices, ",
                  launch_.device(), " and ", tensor.device(), "!");
      c10::impl::common_device_check_failure(launch_.device(), tensor, plan_.method.c_str(),
                                             op_.schema().arguments()[i].name().c_str());
    });
  }

  // A written tensor of a copy-on-write storage gets its own bytes before any address is used.
  void materialize_written(std::size_t i) {
    if (!is_written(i)) return;
    for_each_tensor(arguments_[i], [&](const at::Tensor& tensor) {
      writes_arguments_ = true;
      if (!tensor.is_cuda()) return;
      for_each_part(tensor, [](const at::Tensor& part) {
        if (part.storage().nbytes()) part.storage().mutable_data();
      });
    });
  }

  void touch(std::size_t i) {
    for_each_tensor(arguments_[i], [&](const at::Tensor& tensor) {
      if (!tensor.is_cuda()) return;
      for_each_part(tensor,
                    [&](const at::Tensor& part) { launch_.touch(part, plan_.accesses[i]); });
    });
  }

  torch::jit::Stack cpu_arguments() {
    torch::jit::Stack cpu_stack;
    cpu_stack.reserve(arguments_.size());
    for (std::size_t i = 0; i < arguments_.size(); ++i) cpu_stack.push_back(cpu_argument(i));
    return cpu_stack;
  }

  // Runs the operator to get the shapes of its results: on zeros, which are valid indices, else on
  // ones, which are valid divisors and probabilities.
  torch::jit::Stack try_out() {
    std::exception_ptr failure;
    using Use = CpuAliases::Use;
    for (const Use values : {Use::kZeros, Use::kOnes}) {
      aliases_.emplace(launch_, values);
      torch::jit::Stack cpu_stack = cpu_arguments();
      try {
        compute(&cpu_stack);
        return cpu_stack;
      } catch (const c10::Error&) {
        if (!failure) failure = std::current_exception();
      }
    }
    std::rethrow_exception(failure);
  }

  c10::IValue cpu_argument(std::size_t i) {
    const c10::IValue& argument = arguments_[i];
    if (plan_.generator == i) {
      const auto requested =
          argument.isNone() ? std::nullopt : std::optional(argument.toGenerator());
      if (!random_) random_ = next_random_state(requested, launch_.device());
      return cpu_generator(*random_);
    }
    if (argument.isDevice() && argument.toDevice().is_cuda()) return c10::Device(c10::kCPU);
    return map_tensors(argument, [&](const at::Tensor& tensor) {
      return on_cuda(tensor) ? aliases_->alias(tensor) : tensor;
    });
  }

  void compute(torch::jit::Stack* cpu_stack) const {
    const CpuKernelScope scope;
    run_cpu_kernel(op_, plan_.cpu_key, cpu_stack);
  }

  void return_results(const torch::jit::Stack& cpu_results) {
    aliases_->write_back_resized();
    torch::jit::Stack results;
    results.reserve(cpu_results.size());
    std::vector<CapturedResult> new_tensors;
    std::size_t index = 0;
    for (const c10::IValue& result : cpu_results) {
      results.push_back(map_tensors(result, [&](const at::Tensor& tensor) {
        const at::Tensor on_device = device_result(tensor);
        if (!tensor.defined()) return on_device;
        if (aliases_->is_new(on_device)) new_tensors.push_back({index, on_device});
        ++index;
        return on_device;
      }));
    }
    aliases_->copy_results();
    if (launch_.is_capturing()) capture(new_tensors);
    torch::jit::drop(*stack_, arguments_.size());
    for (c10::IValue& result : results) stack_->push_back(std::move(result));
  }

  // Call this after the operator has run, when written tensors have their final sizes and memory.
  void capture(const std::vector<CapturedResult>& results) {
    CpuAliases aliases(launch_, CpuAliases::Use::kGraph);
    torch::jit::Stack arguments;
    for (std::size_t i = 0; i < arguments_.size(); ++i)
      arguments.push_back(captured_argument(i, aliases));
    auto captured = std::make_shared<CapturedOperator>(op_, std::move(arguments));
    for (std::size_t i = 0; i < arguments_.size(); ++i) {
      if (!is_written(i)) continue;
      for_each_tensor(captured->argument(i), [&](const at::Tensor& tensor) {
        if (tensor.defined()) captured->add_written(tensor);
      });
    }
    if (random_) captured->set_random(*plan_.generator, *random_);
    for (const CapturedResult& result : results)
      captured->add_result(result.index, aliases.alias(result.tensor));
    launch_.record([captured] { captured->run(); });
  }

  c10::IValue captured_argument(std::size_t i, CpuAliases& aliases) const {
    const c10::IValue& argument = arguments_[i];
    if (argument.isDevice() && argument.toDevice().is_cuda()) return c10::Device(c10::kCPU);
    if (plan_.generator == i) return {};
    return map_tensors(argument, [&](const at::Tensor& tensor) {
      if (on_cuda(tensor)) return aliases.alias(tensor);
      return tensor.defined() && !is_written(i) ? present_value(tensor) : tensor;
    });
  }

  // Copies a host tensor at capture time. Every launch of the graph uses this copy.
  static at::Tensor present_value(const at::Tensor& tensor) {
    const CpuKernelScope scope;
    at::Tensor copy = at::clone(tensor);
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number())
      copy.unsafeGetTensorImpl()->set_wrapped_number(true);
    return copy;
  }

  // If the operator returns a host tensor that was its argument, this tensor is not a new result
  // and stays on the host.
  at::Tensor device_result(const at::Tensor& result) {
    bool passed_in = false;
    for (const c10::IValue& argument : arguments_) {
      for_each_tensor(argument,
                      [&](const at::Tensor& tensor) { passed_in |= tensor.is_same(result); });
    }
    return passed_in ? result : aliases_->to_device(result);
  }

  const c10::OperatorHandle& op_;
  const OperatorPlan& plan_;
  torch::jit::Stack* stack_;
  c10::ArrayRef<c10::IValue> arguments_;
  Launch launch_;
  std::optional<CpuAliases> aliases_;
  std::optional<at::PhiloxCudaState> random_;
  bool writes_arguments_ = false;
};

}  // namespace

void RedirectedOperator::operator()(const c10::OperatorHandle& op, c10::DispatchKeySet,
                                    torch::jit::Stack* stack) {
  RedirectedCall(op, plan_, stack).run();
}

void UnavailableOperator::operator()(const c10::OperatorHandle& op, c10::DispatchKeySet,
                                     torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, op.operator_name(),
                              " has no CPU kernel and is not available on the simulated device, "
                              "which runs PyTorch's CPU kernels; use operators that have one");
}

void UnredirectedOperator::operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                                      torch::jit::Stack* stack) {
  try {
    kernel_.callBoxed(op, keys, stack);
  } catch (const c10::Error& error) {
    if (error.msg().find("CUDA error") == std::string::npos) throw;
    TORCH_CHECK_NOT_IMPLEMENTED(false, op.operator_name(), ": ", kind_, kUnavailable, " (",
                                error.msg().substr(0, error.msg().find('\n')), ")");
  }
}

DirectCall::DirectCall(const char* name, const char* overload)
    : op_(c10::Dispatcher::singleton().findSchemaOrThrow(name, overload)), plan_(plan_of(op_)) {}

void DirectCall::run(torch::jit::Stack& stack) const {
  RedirectedCall(op_, plan_, &stack).run();
}

}  // namespace uvm::sim_kernels
