#include "sim/engine/kernel_registry.hpp"

namespace uvmsim {

KernelRegistry& KernelRegistry::instance() {
  static auto* const registry = new KernelRegistry;
  return *registry;
}

void KernelRegistry::add(const void* function, const char* name) {
  const std::lock_guard lock(mutex_);
  names_[function] = name;
}

const char* KernelRegistry::name_of(const void* function) const {
  const std::lock_guard lock(mutex_);
  const auto it = names_.find(function);
  return it == names_.end() ? nullptr : it->second;
}

bool KernelRegistry::is_first_failure(const std::string& name) {
  const std::lock_guard lock(mutex_);
  return failed_.insert(name).second;
}

}  // namespace uvmsim
