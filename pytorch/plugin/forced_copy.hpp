// Tensor.to(copy=True) asks for bytes of its own. A copy-on-write move gives them; an alias does
// not, and `aten::_to_copy`, where moves are made, has no such argument. So `aten::to` says it
// here.
#pragma once

namespace uvm::torch_plugin {

// This thread is inside a call of Tensor.to with copy=True.
bool copy_is_forced();

// Puts our `aten::to` in front of torch's, which it calls. Once, when the plugin is installed.
void watch_forced_copies();

}  // namespace uvm::torch_plugin
