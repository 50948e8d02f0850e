// Replaces functions in loaded libraries: it changes the slots through which they call them. A
// preloaded definition is too late for some functions. The main program may define them, as a
// statically linked Python does with all of Python's. Or the libraries were loaded first.
#pragma once

#include <span>

namespace uvm {

struct ImportedFunction {
  const char* symbol = nullptr;
  void* replacement = nullptr;
  // By the last call: a library has a slot for it, which holds `replacement`.
  bool replaced = false;
};

// Makes calls from the mapped library whose file is called `library` go to the replacements; from
// all libraries and the program where it is nullptr. A library that is not mapped, or that does not
// call a function through a slot, leaves `replaced` false. Safe while other threads make such
// calls.
void replace_imported_functions(const char* library, std::span<ImportedFunction> functions);

// The same for one function: whether it was replaced.
bool replace_imported_function(const char* library, const char* symbol, void* replacement);

}  // namespace uvm
