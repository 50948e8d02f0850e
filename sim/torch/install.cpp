// Registers the kernels for the dispatch keys CUDA, SparseCUDA and NestedTensorCUDA, once per
// process, until the process ends. Calls nothing of torch's CUDA runtime, which the caller may be
// initialising.
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/PyInterpreterHooks.h>
#include <c10/util/Exception.h>
#include <torch/csrc/jit/codegen/fuser/interface.h>
#include <torch/library.h>

#include <array>
#include <cstdio>
#include <exception>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "sim/torch/compute_threads.hpp"
#include "sim/torch/operator_plan.hpp"
#include "sim/torch/redirect.hpp"
#include "sim/torch/sim_kernels.h"
#include "sim/torch/special_cases.hpp"

namespace uvm::sim_kernels {
namespace {

// Suppresses torch's warnings about replaced kernels, which would appear in every program.
class SilentWarnings final : public c10::WarningHandler {
 public:
  void process(const c10::Warning&) override {}
};

// Static initialisers register kernels and hooks. The initialisers of libtorch_python run last and
// register the hooks. So if the hooks are registered, every library of torch is initialised.
bool torch_is_initialised() {
  if (c10::impl::PyInterpreterHooksRegistry()->Keys().empty()) return false;
  const auto add = c10::Dispatcher::singleton().findOp({"aten::add", "Tensor"});
  return add && add->hasKernelForDispatchKey(c10::DispatchKey::CUDA);
}

// Leaked: at exit torch's statics may be destroyed before ours.
struct Registrations {
  torch::Library library{torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__};
  torch::Library nested{torch::Library::IMPL, "aten", c10::DispatchKey::NestedTensorCUDA, __FILE__,
                        __LINE__};
  std::vector<c10::RegistrationHandleRAII> handles;
};

// A kind of tensor with its own dispatch key, for which torch's own kernels run.
struct UnredirectedKind {
  c10::DispatchKey key;
  const char* name;
};
constexpr std::array<UnredirectedKind, 2> kUnredirectedKinds = {{
    {c10::DispatchKey::SparseCsrCUDA, "compressed sparse"},
    {c10::DispatchKey::QuantizedCUDA, "quantized"},
}};

void install() {
  SilentWarnings silence;
  const c10::WarningUtils::WarningHandlerGuard guard(&silence);
  static auto* registrations = new Registrations;

  std::set<std::string> special;
  for (SpecialCase& special_case : special_cases()) {
    special.insert("aten::" + special_case.name);
    registrations->library.impl(special_case.name.c_str(), std::move(special_case.function));
  }
  for (SpecialCase& special_case : nested_special_cases())
    registrations->nested.impl(special_case.name.c_str(), std::move(special_case.function));
  choose_math_attention();
  remember_compute_threads();
  // A fused kernel is GPU code generated at run time, which cannot run here.
  torch::jit::overrideCanFuseOnGPU(false);

  auto& dispatcher = c10::Dispatcher::singleton();
  const auto add = [&](const c10::OperatorName& name, c10::DispatchKey key, auto functor) {
    auto kernel = c10::KernelFunction::makeFromBoxedFunctor(std::move(functor));
    registrations->handles.push_back(dispatcher.registerImpl(
        name, key, std::move(kernel), std::nullopt, nullptr, "simulated device"));
  };
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findOp(name);
    if (!op || !op->hasSchema()) continue;
    for (const UnredirectedKind& kind : kUnredirectedKinds) {
      if (!op->hasKernelForDispatchKey(kind.key)) continue;
      add(name, kind.key,
          std::make_unique<UnredirectedOperator>(op->getComputedKernelForDispatchKey(kind.key),
                                                 kind.name));
    }
    for (const auto key : {c10::DispatchKey::CUDA, c10::DispatchKey::SparseCUDA}) {
      if (key == c10::DispatchKey::CUDA && special.contains(c10::toString(name))) continue;
      switch (route_of(*op, key)) {
        case Route::kRedirect:
          add(name, key, std::make_unique<RedirectedOperator>(plan_of(*op, key)));
          break;
        case Route::kUnavailable:
          add(name, key, std::make_unique<UnavailableOperator>());
          break;
        case Route::kNative:
        case Route::kNone:
          break;
      }
    }
  }
}

}  // namespace
}  // namespace uvm::sim_kernels

extern "C" __attribute__((visibility("default"))) int uvmsim_torch_install(void) {
  try {
    if (!uvm::sim_kernels::torch_is_initialised()) return 0;
    uvm::sim_kernels::install();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "uvmsim: CUDA operators are not available on the simulated device: %s\n",
                 error.what());
  }
  return 1;
}
