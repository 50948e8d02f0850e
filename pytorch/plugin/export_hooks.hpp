// Pointers that leave torch. A tensor whose memory somebody else may write to behind torch's back
// (a numpy array, a DLPack capsule, an address from data_ptr()) must not be shared by a later move:
// the writer would change both sides. The preload library sees such exports and tells us; the block
// is marked and moves copy it.
#pragma once

#include <c10/core/StorageImpl.h>

namespace uvm::torch_plugin {

// Listens to what the preload library sees: numpy and DLPack.
void install_export_hooks();

// Listens to addresses that torch's Python bindings hand out, from now on. Call when the first
// block of ours is made: the bindings are loaded by then, where there are any. The second call does
// nothing.
void watch_python_pointers();

// Runs torch's own `next(&storage)`, the first write to one side of a shared storage, and counts
// it. Where the other side is gone, torch gives the bytes to the writer without a copy; if they had
// been on a device, its kernels may still be reading, and the host waits for them.
void materialize(c10::StorageImpl& storage, void (*next)(void*));

}  // namespace uvm::torch_plugin
