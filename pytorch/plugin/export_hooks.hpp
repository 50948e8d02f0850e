// Tracks pointers that leave torch: a numpy array, a DLPack capsule, an address from data_ptr().
// The code that holds such a pointer may write without torch's knowledge, and the write would
// change both sides of a shared block. So the block is marked, and moves copy it.
#pragma once

namespace uvm::torch_plugin {

// Registers the hooks for exports that the preload library intercepts: numpy and DLPack.
void install_export_hooks();

// From now on, intercepts addresses that torch's Python bindings return. Call it when the first
// block is allocated: if there are bindings, they are loaded by then. A second successful call does
// nothing.
void watch_python_pointers();

}  // namespace uvm::torch_plugin
