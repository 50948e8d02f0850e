// Loads the plugin for the torch in this process, once, when torch's CUDA libraries are mapped.
#pragma once

#include <string>

namespace uvm::interpose {

// Cheap and safe to call often, also from static initialisers of other libraries. Does nothing
// unless PYTORCH_ENABLE_UNIFIED_MEMORY switches uvmalloc on, nor in a second copy of this library.
// If there is no plugin for this torch, torch stays untouched and one line is logged.
void load_torch_plugin_if_due();

// The same for a program that switches uvmalloc on itself, perhaps long after it began to use
// torch. Returns an empty string, or one line that says why uvmalloc stays off.
std::string load_torch_plugin_late();

}  // namespace uvm::interpose
