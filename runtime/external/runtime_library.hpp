// Runtimes in shared objects that are named by their path. Owns the list of those that were opened,
// which are never unloaded. All functions are thread-safe.
#pragma once

#include <string>
#include <string_view>

namespace uvm::external {

// Whether a runtime's name is the path of a shared object.
inline bool is_path(std::string_view name) {
  return name.find('/') != std::string_view::npos;
}

struct LibraryName {
  std::string name;    // of the runtime in the object, which is registered; empty: there is none
  std::string reason;  // why not, one line
};

// Opens the object, asks its uvmalloc_runtime() and registers the runtime. A path is opened once;
// later calls return the same.
LibraryName open_runtime_library(std::string_view path);

}  // namespace uvm::external
