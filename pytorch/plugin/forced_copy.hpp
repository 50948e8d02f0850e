// Tensor.to(copy=True) returns bytes of its own. A copy-on-write move gives them; an alias does
// not. `aten::_to_copy`, where moves are made, lacks the argument `copy`, so an override of
// `aten::to` records it here.
#pragma once

namespace uvm::torch_plugin {

// Whether this thread is inside a call of Tensor.to with copy=True.
bool copy_is_forced();

// Overrides `aten::to` with functions that call torch's. Call it once, when the plugin is
// installed.
void watch_forced_copies();

}  // namespace uvm::torch_plugin
