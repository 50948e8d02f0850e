// Pointers that leave torch: a numpy array, a DLPack capsule, an address from data_ptr(). Their
// owner may write without torch's knowledge, and such a write would change both sides of a shared
// block. So the block is marked, and moves copy it.
#pragma once

namespace uvm::torch_plugin {

// Registers for the exports that the preload library intercepts: numpy and DLPack.
void install_export_hooks();

// Intercepts the addresses that torch's Python bindings return from now on. Call it when the first
// block is allocated: the bindings, if any, are loaded by then. Once they are intercepted, does
// nothing.
void watch_python_pointers();

}  // namespace uvm::torch_plugin
