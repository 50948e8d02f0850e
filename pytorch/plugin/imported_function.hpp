// Replaces a function as one loaded library sees it: the slot through which that library calls it.
// For a function that the main program defines, as a Python linked statically does with all of
// Python's, where a preloaded definition comes too late.
#pragma once

namespace uvm::torch_plugin {

// Makes calls to `symbol` from the mapped library whose file is called `library` go to
// `replacement`. False where the library is not mapped or does not call it through a slot. Safe
// while other threads make such calls.
bool replace_imported_function(const char* library, const char* symbol, void* replacement);

}  // namespace uvm::torch_plugin
