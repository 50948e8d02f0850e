// Pointers that leave torch: a numpy array, a DLPack capsule, an address from data_ptr(). Their
// owner may write without torch's knowledge. A later move must not share the block: the writer
// would change both sides. The preload library sees these exports. The block is marked, and moves
// copy it.
#pragma once

namespace uvm::torch_plugin {

// Listens to what the preload library sees: numpy and DLPack.
void install_export_hooks();

// Listens to addresses that torch's Python bindings hand out, from now on. Call when the first
// block of ours is made: the bindings are loaded by then, where there are any. The second call does
// nothing.
void watch_python_pointers();

}  // namespace uvm::torch_plugin
