// The kernels of a process, by host function, as a program's start-up code registers them. All
// interfaces share the registry; in every interface a kernel's handle is its host function.
// Thread-safe: the registry's mutex is not held across other calls.
#pragma once

#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "sim/engine/export.hpp"

namespace uvmsim {

class UVMSIM_EXPORT KernelRegistry {
 public:
  static KernelRegistry& instance();

  // The registering library owns the name.
  void add(const void* function, const char* name);

  // Returns null for a function that was not registered.
  const char* name_of(const void* function) const;

  bool is_first_failure(const std::string& name);

 private:
  mutable std::mutex mutex_;
  std::unordered_map<const void*, const char*> names_;
  std::unordered_set<std::string> failed_;
};

}  // namespace uvmsim
