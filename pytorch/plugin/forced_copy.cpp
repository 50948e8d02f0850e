#include "pytorch/plugin/forced_copy.hpp"

#include <utility>

#include <ATen/ops/to_native.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

namespace uvm::torch_plugin {
namespace {

thread_local bool forced = false;

class ForcedScope {
 public:
  explicit ForcedScope(bool copy) : before_(std::exchange(forced, copy)) {}
  ~ForcedScope() { forced = before_; }
  ForcedScope(const ForcedScope&) = delete;
  ForcedScope& operator=(const ForcedScope&) = delete;

 private:
  bool before_;
};

using MemoryFormat = std::optional<c10::MemoryFormat>;

at::Tensor to_dtype_layout(const at::Tensor& self, std::optional<c10::ScalarType> dtype,
                           std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                           std::optional<bool> pin_memory, bool non_blocking, bool copy,
                           MemoryFormat format) {
  const ForcedScope scope(copy);
  return at::native::to(self, dtype, layout, device, pin_memory, non_blocking, copy, format);
}

at::Tensor to_device(const at::Tensor& self, c10::Device device, c10::ScalarType dtype,
                     bool non_blocking, bool copy, MemoryFormat format) {
  const ForcedScope scope(copy);
  return at::native::to(self, device, dtype, non_blocking, copy, format);
}

at::Tensor to_other(const at::Tensor& self, const at::Tensor& other, bool non_blocking, bool copy,
                    MemoryFormat format) {
  const ForcedScope scope(copy);
  return at::native::to(self, other, non_blocking, copy, format);
}

// Suppresses torch's warning that a kernel is overridden.
class SilentWarnings final : public c10::WarningHandler {
 public:
  void process(const c10::Warning&) override {}
};

}  // namespace

bool copy_is_forced() {
  return forced;
}

void watch_forced_copies() {
  SilentWarnings silence;
  const c10::WarningUtils::WarningHandlerGuard guard(&silence);
  // Never destroyed: at exit, torch's static objects may be destroyed before this one.
  static auto* library =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CompositeImplicitAutograd,
                         __FILE__, __LINE__);
  library->impl("to.dtype_layout", &to_dtype_layout);
  library->impl("to.device", &to_device);
  library->impl("to.other", &to_other);
}

}  // namespace uvm::torch_plugin
