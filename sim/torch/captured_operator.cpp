#include "sim/torch/captured_operator.hpp"

#include <c10/util/Exception.h>

#include <cstring>

#include "sim/torch/cpu_kernel_scope.hpp"
#include "sim/torch/cpu_kernels.hpp"
#include "sim/torch/extent.hpp"
#include "sim/torch/operator_values.hpp"
#include "sim/torch/random.hpp"

namespace uvm::sim_kernels {

void CapturedOperator::run() const {
  const CpuKernelScope scope;
  for (const at::Tensor& tensor : written_) {
    tensor._set_conj(false);
    tensor._set_neg(false);
  }
  torch::jit::Stack stack = arguments_;
  if (random_) stack[random_->generator] = cpu_generator(random_->state);
  run_cpu_kernel(op_, c10::DispatchKey::CPU, &stack);
  std::size_t index = 0;
  for (const c10::IValue& value : stack)
    for_each_tensor(value, [&](const at::Tensor& tensor) { keep(index++, tensor); });
}

void CapturedOperator::keep(std::size_t index, const at::Tensor& tensor) const {
  for (const Result& result : results_) {
    if (result.index != index) continue;
    const at::Tensor& destination = result.destination;
    TORCH_CHECK(destination.sizes() == tensor.sizes() && destination.strides() == tensor.strides(),
                "result ", index, " had sizes ", destination.sizes(), " and strides ",
                destination.strides(), " when it was captured, and has ", tensor.sizes(), " and ",
                tensor.strides());
    const std::size_t size_bytes = extent_bytes(tensor);
    if (size_bytes != 0)
      std::memcpy(destination.mutable_data_ptr(), tensor.const_data_ptr(), size_bytes);
  }
}

}  // namespace uvm::sim_kernels
