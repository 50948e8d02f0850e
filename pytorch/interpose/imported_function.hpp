// Replaces functions in loaded libraries: it overwrites the slots through which the libraries call
// them. A preloaded definition does not reach a function that the main program defines; a
// statically linked Python defines all of Python's. Nor does it reach libraries that were loaded
// before it.
#pragma once

#include <span>

namespace uvm {

struct ImportedFunction {
  const char* symbol = nullptr;
  void* replacement = nullptr;
  // Set by the last call: at least one library has a slot for the function, and the slot holds
  // `replacement`.
  bool replaced = false;
};

// Redirects calls from the mapped library with the file name `library`, or from all libraries and
// the program if it is nullptr. `replaced` stays false if the library is not mapped, or calls the
// function without a slot. Safe while other threads make such calls.
void replace_imported_functions(const char* library, std::span<ImportedFunction> functions);

// The same for one function. Returns whether it was replaced.
bool replace_imported_function(const char* library, const char* symbol, void* replacement);

}  // namespace uvm
