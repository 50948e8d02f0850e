// Loads the plugin for the torch in this process, once, when torch's CUDA libraries are there.
#pragma once

namespace uvm::preload {

// Cheap and safe to call often, also from static initialisers of other libraries. Does nothing
// unless PYTORCH_ENABLE_UNIFIED_MEMORY switches uvmalloc on. A torch without a plugin is left
// untouched, with one line.
void load_torch_plugin_if_due();

}  // namespace uvm::preload
