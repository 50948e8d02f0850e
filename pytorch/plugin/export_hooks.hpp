// Pointers that leave torch. A tensor whose memory somebody else may write to behind torch's back
// (a numpy array, a DLPack capsule, an address from data_ptr()) must not be shared by a later move:
// the writer would change both sides. The preload library sees such exports and tells us; the block
// is marked and moves copy it.
#pragma once

namespace uvm::torch_plugin {

void install_export_hooks();

}  // namespace uvm::torch_plugin
