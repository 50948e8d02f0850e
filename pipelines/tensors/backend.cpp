#include "pipelines/tensors/backend.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <mutex>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace uvm {
namespace {

struct Entry {
  std::string name;
  BackendFactory factory;
};

struct Registry {
  std::mutex mutex;
  std::vector<Entry> entries;
};

// Never destroyed, because another shared object may register a backend during static destruction.
Registry& registry() {
  static Registry* const instance = new Registry;
  return *instance;
}

}  // namespace

bool add_backend(std::string_view name, BackendFactory factory) {
  if (name.empty() || !factory) return false;
  std::lock_guard lock(registry().mutex);
  auto& entries = registry().entries;
  if (std::any_of(entries.begin(), entries.end(),
                  [name](const Entry& entry) { return entry.name == name; })) {
    return false;
  }
  entries.push_back({std::string(name), std::move(factory)});
  return true;
}

std::vector<std::string> backend_names() {
  std::lock_guard lock(registry().mutex);
  std::vector<std::string> names;
  for (const Entry& entry : registry().entries) names.push_back(entry.name);
  return names;
}

std::unique_ptr<Backend> open_backend(std::string_view name) {
  BackendFactory factory;
  {
    std::lock_guard lock(registry().mutex);
    for (const Entry& entry : registry().entries) {
      if (entry.name == name) factory = entry.factory;
    }
  }
  if (!factory) {
    throw std::invalid_argument(fmt::format("no backend is named '{}'; accepted: {}", name,
                                            fmt::join(backend_names(), ", ")));
  }
  std::string reason;
  auto backend = factory(&reason);
  if (!backend) throw std::runtime_error(fmt::format("backend '{}': {}", name, reason));
  return backend;
}

void load_backends(const std::string& shared_object) {
  const std::size_t before = backend_names().size();
  if (dlopen(shared_object.c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) {
    throw std::runtime_error(fmt::format("{} cannot be loaded: {}", shared_object, dlerror()));
  }
  if (backend_names().size() == before) {
    throw std::runtime_error(fmt::format("{} adds no backend of a new name", shared_object));
  }
}

}  // namespace uvm
