// Replaces functions in loaded libraries: overwrites the slots through which the libraries call
// them. A preloaded definition does not reach functions that the main program defines (a statically
// linked Python defines all functions of Python), or libraries that were loaded earlier.
#pragma once

#include <span>

namespace uvm {

struct ImportedFunction {
  const char* symbol = nullptr;
  void* replacement = nullptr;
  // Set by replace_imported_functions(): true if at least one library has a slot for the function,
  // and the slot now holds `replacement`.
  bool replaced = false;
};

// Redirects calls from the mapped library with the file name `library`, or from all libraries and
// the program if `library` is nullptr. `replaced` stays false if the library is not mapped, or if
// it calls the function without a slot. Safe while other threads make such calls.
void replace_imported_functions(const char* library, std::span<ImportedFunction> functions);

// Same as replace_imported_functions(), for one function. Returns whether the function was
// replaced.
bool replace_imported_function(const char* library, const char* symbol, void* replacement);

}  // namespace uvm
