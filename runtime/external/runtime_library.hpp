// Opens runtimes in shared objects, which are named by their paths. Owns the list of opened
// objects, which are never unloaded. Thread-safe.
#pragma once

#include <string>
#include <string_view>

namespace uvm::external {

// Returns whether a runtime's name is the path of a shared object.
inline bool is_path(std::string_view name) {
  return name.find('/') != std::string_view::npos;
}

struct LibraryName {
  std::string name;    // the runtime that is registered for the object; empty: no runtime
  std::string reason;  // one line, if `name` is empty
};

// Opens the object, calls its uvmalloc_runtime() and registers the runtime. Later calls with the
// same path return the first result.
LibraryName open_runtime_library(std::string_view path);

}  // namespace uvm::external
