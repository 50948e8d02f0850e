// Loads the plugin for the torch in this process, once, when torch's CUDA libraries are there.
#pragma once

#include <string>

namespace uvm::interpose {

// Cheap and safe to call often, also from static initialisers of other libraries. Does nothing
// unless PYTORCH_ENABLE_UNIFIED_MEMORY switches uvmalloc on. A torch without a plugin is left
// untouched, with one line; a second copy of this library does nothing.
void load_torch_plugin_if_due();

// The same for a program that switches uvmalloc on itself, when torch has been in use for a while.
// Empty, or in one line why it stays off.
std::string load_torch_plugin_late();

}  // namespace uvm::interpose
