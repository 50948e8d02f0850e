#include "sim/torch/simulator.hpp"

#include <dlfcn.h>

namespace uvm::sim_kernels {
namespace {

void* find_symbol(const char* name) {
  if (void* symbol = dlsym(RTLD_DEFAULT, name)) return symbol;
  void* library = dlopen("libuvmsim.so", RTLD_LAZY | RTLD_NOLOAD);
  return library ? dlsym(library, name) : nullptr;
}

}  // namespace

const Simulator& simulator() {
  static const Simulator bound = {
      reinterpret_cast<decltype(&uvmsim_kernel_arithmetic)>(
          find_symbol("uvmsim_kernel_arithmetic")),
      reinterpret_cast<decltype(&uvmsim_launch_arithmetic)>(
          find_symbol("uvmsim_launch_arithmetic")),
      reinterpret_cast<decltype(&uvmsim_device_view)>(find_symbol("uvmsim_device_view")),
      reinterpret_cast<decltype(&uvmsim_is_forked_child)>(find_symbol("uvmsim_is_forked_child"))};
  return bound;
}

void* device_view(const void* address) {
  const Simulator& bound = simulator();
  return bound.device_view ? bound.device_view(address) : const_cast<void*>(address);
}

}  // namespace uvm::sim_kernels
