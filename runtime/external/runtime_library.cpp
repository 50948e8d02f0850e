#include "runtime/external/runtime_library.hpp"

#include <dlfcn.h>
#include <sys/auxv.h>

#include <map>
#include <mutex>

#include <fmt/format.h>

#include "runtime/external/external_runtime.hpp"

namespace uvm::external {
namespace {

constexpr const char* kFunction = "uvmalloc_runtime";

struct Libraries {
  std::mutex mutex;
  std::map<std::string, LibraryName, std::less<>> by_path;
  // By registration, because two paths may refer to one object.
  std::map<const uvmalloc_runtime_registration*, std::string> names;
};

// Leaked, because other threads may use it while the process exits.
Libraries& libraries() {
  static Libraries* const instance = new Libraries;
  return *instance;
}

LibraryName failed(const std::string& path, const std::string& why) {
  return {"", fmt::format("the runtime '{}' cannot be used: {}", path, why)};
}

// The caller holds the mutex.
LibraryName open(const std::string& path, Libraries* all) {
  if (getauxval(AT_SECURE) != 0) {
    return failed(path, "this program runs with raised rights; accepted: the name of a runtime");
  }
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* error = dlerror();
    return failed(path, error != nullptr ? error : "it cannot be loaded");
  }
  const auto function = reinterpret_cast<decltype(&uvmalloc_runtime)>(dlsym(library, kFunction));
  if (function == nullptr) {
    return failed(path,
                  fmt::format("it exports no {}(), which uvmalloc_runtime.h declares", kFunction));
  }
  const uvmalloc_runtime_registration* registration = function(UVMALLOC_RUNTIME_VERSION);
  if (registration == nullptr) {
    return failed(path, fmt::format("its {}() returns NULL for version {}", kFunction,
                                    UVMALLOC_RUNTIME_VERSION));
  }
  if (auto known = all->names.find(registration); known != all->names.end()) {
    return {known->second, ""};
  }
  if (std::string why =
          add_external_runtime(registration->name, registration->operations, registration->context);
      !why.empty()) {
    return failed(path, why);
  }
  all->names.emplace(registration, registration->name);
  return {registration->name, ""};
}

}  // namespace

LibraryName open_runtime_library(std::string_view path) {
  Libraries& all = libraries();
  std::lock_guard lock(all.mutex);
  if (auto known = all.by_path.find(path); known != all.by_path.end()) return known->second;
  const std::string own_path(path);
  return all.by_path.emplace(own_path, open(own_path, &all)).first->second;
}

}  // namespace uvm::external
