#include <uvmalloc/registry.hpp>

#include <algorithm>
#include <mutex>

#include <fmt/format.h>
#include <fmt/ranges.h>

#if UVMALLOC_CUDA
#include "runtime/cuda/cuda_runtime.hpp"
#include "runtime/cuda/driver_api.hpp"
#endif
#if UVMALLOC_HIP
#include "runtime/hip/driver_api.hpp"
#include "runtime/hip/hip_runtime.hpp"
#endif
#include "runtime/external/runtime_library.hpp"

namespace uvm {
namespace {

struct Entry {
  std::string name;
  RuntimeFactory factory;
  RuntimeQuestions questions;
};

struct Registry {
  std::mutex mutex;
  std::vector<Entry> entries;
};

// Leaked, because other shared objects may use the registry after uvmalloc's static destructors.
Registry& registry() {
  static Registry* const instance = [] {
    auto* made = new Registry;
#if UVMALLOC_CUDA
    made->entries.push_back(
        {"cuda", make_cuda_runtime, {cuda::is_driver_initialized, cuda::is_driver_present}});
#endif
#if UVMALLOC_HIP
    made->entries.push_back(
        {"hip", make_hip_runtime, {hip::is_driver_initialized, hip::is_driver_present}});
#endif
    return made;
  }();
  return *instance;
}

std::vector<Entry> entries_copy() {
  std::lock_guard lock(registry().mutex);
  return registry().entries;
}

}  // namespace

bool add_runtime(std::string_view name, RuntimeFactory factory, RuntimeQuestions questions) {
  if (name.empty() || name == "auto" || external::is_path(name) || !factory) return false;
  std::lock_guard lock(registry().mutex);
  for (const Entry& entry : registry().entries) {
    if (entry.name == name) return false;
  }
  registry().entries.push_back({std::string(name), std::move(factory), std::move(questions)});
  return true;
}

bool is_runtime_initialized(std::string_view name) {
  if (external::is_path(name)) {
    const external::LibraryName library = external::open_runtime_library(name);
    return !library.name.empty() && is_runtime_initialized(library.name);
  }
  const std::vector<Entry> entries = entries_copy();
  return std::any_of(entries.begin(), entries.end(), [name](const Entry& entry) {
    const auto& is_initialized = entry.questions.is_initialized;
    if (name == "auto") return is_initialized && is_initialized();
    return name == entry.name && (!is_initialized || is_initialized());
  });
}

bool is_runtime_present(std::string_view name) {
  if (external::is_path(name)) {
    const external::LibraryName library = external::open_runtime_library(name);
    return !library.name.empty() && is_runtime_present(library.name);
  }
  const std::vector<Entry> entries = entries_copy();
  return std::any_of(entries.begin(), entries.end(), [name](const Entry& entry) {
    const auto& is_present = entry.questions.is_present;
    return (name == "auto" || name == entry.name) && (!is_present || is_present());
  });
}

std::vector<std::string> runtime_names() {
  std::vector<std::string> names;
  for (const Entry& entry : entries_copy()) names.push_back(entry.name);
  return names;
}

RuntimeChoice open_runtime(std::string_view name) {
  if (external::is_path(name)) {
    external::LibraryName library = external::open_runtime_library(name);
    if (library.name.empty()) return {nullptr, std::move(library.reason)};
    return open_runtime(library.name);
  }
  std::string reasons;
  for (const Entry& entry : entries_copy()) {
    if (name != "auto" && name != entry.name) continue;
    std::string reason;
    if (auto runtime = entry.factory(&reason)) return {std::move(runtime), ""};
    if (!reasons.empty()) reasons += "; ";
    reasons += fmt::format("{}: {}", entry.name, reason);
  }
  if (reasons.empty()) {
    reasons =
        fmt::format("no runtime is named '{}' (UVMALLOC_RUNTIME or an option); accepted: auto, {}",
                    name, fmt::join(runtime_names(), ", "));
  }
  return {nullptr, reasons};
}

}  // namespace uvm
