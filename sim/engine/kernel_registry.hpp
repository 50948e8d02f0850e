// The kernels of a process by the host function that stands for each, as a program's start-up code
// registers them. All interfaces of a process share them: a kernel's handle is its host function in
// each. Has a mutex of its own and calls nothing under it. Thread-safe.
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

  // The name belongs to the library that registers it.
  void add(const void* function, const char* name);

  // Null for a function that was not registered.
  const char* name_of(const void* function) const;

  bool is_first_failure(const std::string& name);

 private:
  mutable std::mutex mutex_;
  std::unordered_map<const void*, const char*> names_;
  std::unordered_set<std::string> failed_;
};

}  // namespace uvmsim
