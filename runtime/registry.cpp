#include <uvmalloc/runtime/registry.hpp>

#include <mutex>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <uvmalloc/runtime/cuda/cuda_runtime.hpp>

namespace uvm {
namespace {

struct Entry {
  std::string name;
  RuntimeFactory factory;
};

struct Registry {
  std::mutex mutex;
  std::vector<Entry> entries;
};

// Leaked: registrations of other shared objects may come and go around our own static destructors.
Registry& registry() {
  static Registry* const instance = [] {
    auto* made = new Registry;
    made->entries.push_back({"cuda", make_cuda_runtime});
    return made;
  }();
  return *instance;
}

std::vector<Entry> entries_copy() {
  std::lock_guard lock(registry().mutex);
  return registry().entries;
}

}  // namespace

bool add_runtime(std::string_view name, RuntimeFactory factory) {
  if (name.empty() || name == "auto" || !factory) return false;
  std::lock_guard lock(registry().mutex);
  for (const Entry& entry : registry().entries) {
    if (entry.name == name) return false;
  }
  registry().entries.push_back({std::string(name), std::move(factory)});
  return true;
}

std::vector<std::string> runtime_names() {
  std::vector<std::string> names;
  for (const Entry& entry : entries_copy()) names.push_back(entry.name);
  return names;
}

RuntimeChoice open_runtime(std::string_view name) {
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
