// Runtimes in shared objects, which are named by their paths. Owns the list of opened objects,
// which are never unloaded. Thread-safe.
#pragma once

#include <string>
#include <string_view>

namespace uvm::external {

// Whether a runtime's name is the path of a shared object.
inline bool is_path(std::string_view name) {
  return name.find('/') != std::string_view::npos;
}

struct LibraryName {
  std::string name;    // of the runtime that is registered for the object; empty: there is none
  std::string reason;  // one line, if there is none
};

// Opens the object, calls its uvmalloc_runtime() and registers the runtime. Later calls with the
// same path return the first result.
LibraryName open_runtime_library(std::string_view path);

}  // namespace uvm::external
