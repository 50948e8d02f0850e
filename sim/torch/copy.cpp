// copy_ and its foreach form. PyTorch's own code copies between host and device, so that pinned
// memory, events and blocking behave as on a real device. Copies that a real device does with a
// kernel run on CPU aliases.
#include <ATen/Functions.h>
#include <ATen/ops/copy_native.h>

#include "sim/torch/cpu_alias.hpp"
#include "sim/torch/cpu_kernel_scope.hpp"
#include "sim/torch/launch.hpp"
#include "sim/torch/special_cases.hpp"

namespace uvm::sim_kernels {
namespace {

bool same_layout(const at::Tensor& a, const at::Tensor& b) {
  return a.dtype() == b.dtype() && a.sizes() == b.sizes() && a.strides() == b.strides() &&
         a.is_non_overlapping_and_dense() && a.is_conj() == b.is_conj() && a.is_neg() == b.is_neg();
}

void copy_on_device(at::Tensor& self, const at::Tensor& source) {
  Launch launch(self.device(), "aten::copy_");
  if (self.storage().nbytes()) self.storage().mutable_data();
  const auto use = launch.is_capturing() ? CpuAliases::Use::kGraph : CpuAliases::Use::kThisCall;
  CpuAliases aliases(launch, use);
  auto run = [to = aliases.alias(self), from = aliases.alias(source)]() mutable {
    const CpuKernelScope scope;
    at::native::copy_(to, from, false);
  };
  launch.touch(self, UVMSIM_WRITE);
  launch.touch(source, UVMSIM_READ);
  if (launch.is_capturing()) {
    launch.record(std::move(run));
    return;
  }
  launch.submit();
  run();
}

// Copies dense bytes between devices; conversions are made on the source or on the destination
// device.
void copy_between_devices(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  const at::Tensor dense =
      source.to(self.scalar_type()).expand(self.sizes()).contiguous().resolve_conj().resolve_neg();
  if (same_layout(self, dense)) {
    at::native::copy_(self, dense, non_blocking);
    return;
  }
  at::Tensor arrived =
      at::empty_like(dense, dense.options().device(self.device()), at::MemoryFormat::Contiguous);
  at::native::copy_(arrived, dense, non_blocking);
  copy_on_device(self, arrived);
}

bool strided(const at::Tensor& tensor) {
  return tensor.layout() == c10::kStrided && !tensor.is_quantized();
}

}  // namespace

at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  const bool kernels_needed = self.is_cuda() && source.is_cuda() && strided(self) &&
                              strided(source) && self.numel() != 0 && !self.is_same(source) &&
                              !same_layout(self, source);
  if (!kernels_needed) {
    at::native::copy_(self, source, non_blocking);
  } else if (self.device() == source.device()) {
    copy_on_device(self, source);
  } else {
    copy_between_devices(self, source, non_blocking);
  }
  return self;
}

void foreach_copy_(at::TensorList self, at::TensorList source, bool non_blocking) {
  TORCH_CHECK(self.size() == source.size(),
              "Tensor lists must have the same number of tensors, got ", self.size(), " and ",
              source.size());
  for (std::size_t i = 0; i < self.size(); ++i) self[i].copy_(source[i], non_blocking);
}

}  // namespace uvm::sim_kernels
