#include "sim/torch/cpu_kernel_scope.hpp"

#include <dlfcn.h>

namespace uvm::sim_kernels {
namespace {

using SetHostManaged = int (*)(int);

SetHostManaged set_host_managed() {
  static const auto found =
      reinterpret_cast<SetHostManaged>(dlsym(RTLD_DEFAULT, "uvmalloc_set_host_managed"));
  return found != nullptr ? found : [](int managed) { return managed; };
}

}  // namespace

ScratchScope::ScratchScope() : before_(set_host_managed()(0)) {}

ScratchScope::~ScratchScope() {
  set_host_managed()(before_);
}

}  // namespace uvm::sim_kernels
