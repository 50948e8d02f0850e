// Operators that say whether a tensor is managed or pinned, that copy a tensor into or out of
// managed memory, and that return the report.
#include <string>

#include <ATen/ops/is_pinned_native.h>
#include <torch/library.h>

#include "allocator/process/framework_bridge.hpp"
#include "pytorch/plugin/conversion.hpp"
#include "pytorch/plugin/facades.hpp"
#include "pytorch/plugin/tensor_storage.hpp"

namespace uvm::torch_plugin {
namespace {

// Replaces torch's is_pinned, which queries the driver: the driver does not count managed memory as
// pinned. The allocator of the storage decides, because a pinned and a pageable storage may share a
// block. If the storage has another allocator (numpy's, for example), the block decides. The driver
// decides for memory outside uvmalloc, because the driver knows what the program has registered.
bool is_pinned(const at::Tensor& self, std::optional<c10::Device> device) {
  if (CachingManagedAllocator* ours = process_allocator(); ours != nullptr && self.has_storage()) {
    if (const auto block = ours->find(self.storage().data()); block && block->live) {
      const c10::Allocator* made_by = storage_of(self).allocator();
      if (made_by == facades().pinned) return true;
      if (made_by != facades().host && block->pinned) return true;
    }
  }
  return at::native::is_pinned(self, device);
}

bool is_managed(const at::Tensor& self) {
  CachingManagedAllocator* ours = process_allocator();
  return ours != nullptr && self.has_storage() &&
         ours->find(storage_of(self)._mutable_data_ptr_no_checks().get()).has_value();
}

// Whether the tensor can move to another device without a copy, now or after a conversion.
bool can_move(const at::Tensor& self) {
  if (process_allocator() == nullptr && !is_plugin_enabled()) return false;
  return self.has_storage() && (is_managed(self) || (is_early(storage_of(self)) &&
                                                     !is_early_and_exported(storage_of(self))));
}

// manage_memory() and unmanage_memory() return differentiable copies of a tensor.
at::Tensor manage_memory(const at::Tensor& self) {
  if (is_managed(self)) return self;
  TORCH_CHECK(self.layout() == c10::kStrided, "manage_memory: the tensor is ", self.layout(),
              "; accepted: strided tensors");
  TORCH_CHECK(is_host_or_cuda(self.device()), "manage_memory: the tensor is on ", self.device(),
              "; accepted: cpu, cuda");
  const Activation& activation = activate_process_allocator();
  const bool is_child =
      activation.allocator != nullptr && activation.allocator->inspection().in_forked_child();
  TORCH_CHECK(activation.allocator != nullptr && !is_child,
              "manage_memory: unified memory is not enabled: ",
              is_child ? "this is a forked child" : activation.reason);
  const MemoryScope scope(/*managed=*/true);
  return self.clone();
}

at::Tensor unmanage_memory(const at::Tensor& self) {
  if (!is_managed(self)) return self;
  const MemoryScope scope(/*managed=*/false);
  return self.clone();
}

std::string report() {
  return report_json();
}

void check_invariants() {
  if (CachingManagedAllocator* ours = process_allocator()) ours->inspection().check_invariants();
}

}  // namespace
}  // namespace uvm::torch_plugin

TORCH_LIBRARY(uvmalloc, library) {
  library.def("is_managed(Tensor self) -> bool", &uvm::torch_plugin::is_managed);
  library.def("can_move(Tensor self) -> bool", &uvm::torch_plugin::can_move);
  library.def("manage_memory(Tensor(a) self) -> Tensor(a)", &uvm::torch_plugin::manage_memory);
  library.def("unmanage_memory(Tensor(a) self) -> Tensor(a)", &uvm::torch_plugin::unmanage_memory);
  library.def("report() -> str", &uvm::torch_plugin::report);
  library.def("check_invariants() -> ()", &uvm::torch_plugin::check_invariants);
}

TORCH_LIBRARY_IMPL(aten, CPU, library) {
  library.impl("is_pinned", &uvm::torch_plugin::is_pinned);
}
