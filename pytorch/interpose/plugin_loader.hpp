// Loads the plugin for this process's torch, once, when torch's CUDA libraries are mapped.
#pragma once

#include <string>

namespace uvm::interpose {

// Cheap and safe to call often, also from static initialisers of other libraries. Does nothing if
// PYTORCH_ENABLE_UNIFIED_MEMORY has not switched uvmalloc on, or if this is a second copy of this
// library. If there is no plugin for this torch, logs one line and changes nothing in torch. Then
// uvmalloc serves torch's CUDA allocation calls, unless UVMALLOC_CUDA is off or the calls bypass
// this library.
void load_torch_plugin_if_due();

// Same as load_torch_plugin_if_due(), for a program that calls uvmalloc to switch it on, perhaps
// long after the program began to use torch. Returns an empty string, or one line that says why
// uvmalloc stays off.
std::string load_torch_plugin_late();

}  // namespace uvm::interpose
