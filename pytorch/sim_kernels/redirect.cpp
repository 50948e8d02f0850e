#include <uvmalloc/pytorch/sim_kernels/redirect.hpp>

#include <dlfcn.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/op_registration/adaption.h>
#include <c10/cuda/CUDAFunctions.h>

#include <uvmalloc/pytorch/sim_kernels/sim_kernels.h>
#include <uvmalloc/pytorch/sim_kernels/compute_threads.hpp>
#include <uvmalloc/pytorch/sim_kernels/cpu_alias.hpp>
#include <uvmalloc/pytorch/sim_kernels/launch.hpp>
#include <uvmalloc/pytorch/sim_kernels/random.hpp>

namespace uvm::sim_kernels {
namespace {

// What a CPU kernel takes from the CPU allocator while it stands for a device's kernel is that
// kernel's registers and scratch memory: under uvmalloc it comes from malloc and is no host memory
// of the program.
class ScratchScope {
 public:
  ScratchScope() : before_(set_host_managed()(0)) {}
  ~ScratchScope() { set_host_managed()(before_); }
  ScratchScope(const ScratchScope&) = delete;
  ScratchScope& operator=(const ScratchScope&) = delete;

 private:
  using SetHostManaged = int (*)(int);
  static SetHostManaged set_host_managed() {
    static const auto found =
        reinterpret_cast<SetHostManaged>(dlsym(RTLD_DEFAULT, "uvmalloc_set_host_managed"));
    return found != nullptr ? found : [](int managed) { return managed; };
  }

  int before_;
};

// Calls `visit` for each defined tensor of an argument.
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

// The same argument with each tensor replaced by what `convert` makes of it.
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

bool on_cuda(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_cuda();
}

// The device of the first CUDA tensor, or the one asked for, or the current one.
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

// One call of one operator.
class RedirectedCall {
 public:
  RedirectedCall(const c10::OperatorHandle& op, const OperatorPlan& plan, torch::jit::Stack* stack)
      : op_(op),
        plan_(plan),
        stack_(stack),
        arguments_(torch::jit::last(*stack, plan.accesses.size())),
        launch_(device_of(arguments_), plan.name),
        aliases_(launch_) {}

  void run() {
    for (std::size_t i = 0; i < arguments_.size(); ++i) check_devices(i);
    for (std::size_t i = 0; i < arguments_.size(); ++i) materialize_written(i);
    torch::jit::Stack cpu_stack = cpu_arguments();
    for (std::size_t i = 0; i < arguments_.size(); ++i) touch(i);
    // What a kernel overwrites must be resident before; a kernel that only makes new tensors is
    // reported when their addresses are known, so that one operator is one kernel.
    if (writes_arguments_) launch_.submit();
    compute(&cpu_stack);
    return_results(cpu_stack);
    if (plan_.host_waits) launch_.synchronize();
  }

 private:
  bool is_written(std::size_t i) const { return plan_.accesses[i] & UVMSIM_WRITE; }

  void check_devices(std::size_t i) const {
    for_each_tensor(arguments_[i], [&](const at::Tensor& tensor) {
      TORCH_CHECK_NOT_IMPLEMENTED(
          !tensor.is_cuda() || (tensor.layout() == c10::kStrided && tensor.has_storage()),
          plan_.name, ": the simulated device computes on strided tensors only");
      if (plan_.device_check == DeviceCheck::kNone || tensor.device() == launch_.device()) return;
      if (tensor.dim() == 0 && !is_written(i)) return;
      TORCH_CHECK(plan_.device_check != DeviceCheck::kPointwise,
                  "Expected all tensors to be on the same device, but found at least two devices, ",
                  launch_.device(), " and ", tensor.device(), "!");
      c10::impl::common_device_check_failure(launch_.device(), tensor, plan_.method.c_str(),
                                             op_.schema().arguments()[i].name().c_str());
    });
  }

  // A written tensor of a copy-on-write storage gets its own bytes now, before any address is
  // taken.
  void materialize_written(std::size_t i) {
    if (!is_written(i)) return;
    for_each_tensor(arguments_[i], [&](const at::Tensor& tensor) {
      writes_arguments_ = true;
      if (tensor.is_cuda() && tensor.storage().nbytes()) tensor.storage().mutable_data();
    });
  }

  void touch(std::size_t i) {
    for_each_tensor(arguments_[i], [&](const at::Tensor& tensor) {
      if (tensor.is_cuda()) launch_.touch(tensor, plan_.accesses[i]);
    });
  }

  torch::jit::Stack cpu_arguments() {
    torch::jit::Stack cpu_stack;
    cpu_stack.reserve(arguments_.size());
    for (std::size_t i = 0; i < arguments_.size(); ++i) cpu_stack.push_back(cpu_argument(i));
    return cpu_stack;
  }

  c10::IValue cpu_argument(std::size_t i) {
    const c10::IValue& argument = arguments_[i];
    if (plan_.generator == i) {
      const auto requested =
          argument.isNone() ? std::nullopt : std::optional(argument.toGenerator());
      return next_cpu_generator(requested, launch_.device());
    }
    if (argument.isDevice() && argument.toDevice().is_cuda()) return c10::Device(c10::kCPU);
    return map_tensors(argument, [&](const at::Tensor& tensor) {
      return on_cuda(tensor) ? aliases_.alias(tensor) : tensor;
    });
  }

  void compute(torch::jit::Stack* cpu_stack) const {
    // The aliases are no tensors of the program: autograd and version counters have been dealt with
    // on the originals.
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const ScratchScope scratch;
    const ComputeThreads threads;
    op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), cpu_stack);
  }

  void return_results(const torch::jit::Stack& cpu_results) {
    aliases_.write_back_resized();
    torch::jit::Stack results;
    results.reserve(cpu_results.size());
    for (const c10::IValue& result : cpu_results) {
      results.push_back(
          map_tensors(result, [&](const at::Tensor& tensor) { return device_result(tensor); }));
    }
    aliases_.copy_results();
    torch::jit::drop(*stack_, arguments_.size());
    for (c10::IValue& result : results) stack_->push_back(std::move(result));
  }

  // A host tensor that was passed in and comes back is itself, not a result.
  at::Tensor device_result(const at::Tensor& result) {
    bool passed_in = false;
    for (const c10::IValue& argument : arguments_) {
      for_each_tensor(argument,
                      [&](const at::Tensor& tensor) { passed_in |= tensor.is_same(result); });
    }
    return passed_in ? result : aliases_.to_device(result);
  }

  const c10::OperatorHandle& op_;
  const OperatorPlan& plan_;
  torch::jit::Stack* stack_;
  c10::ArrayRef<c10::IValue> arguments_;
  Launch launch_;
  CpuAliases aliases_;
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
                              " has no CPU kernel and is not available on the simulated device");
}

DirectCall::DirectCall(const char* name, const char* overload)
    : op_(c10::Dispatcher::singleton().findSchemaOrThrow(name, overload)), plan_(plan_of(op_)) {}

void DirectCall::run(torch::jit::Stack& stack) const {
  RedirectedCall(op_, plan_, &stack).run();
}

}  // namespace uvm::sim_kernels
