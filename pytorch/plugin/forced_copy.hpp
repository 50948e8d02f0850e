// The result of Tensor.to(copy=True) must have its own bytes: a copy-on-write move is allowed, an
// alias is not. Moves are made in `aten::_to_copy`, which does not have the argument `copy`, so an
// override of `aten::to` records the argument here.
#pragma once

namespace uvm::torch_plugin {

// Whether this thread is inside a call of Tensor.to with copy=True.
bool copy_is_forced();

// Overrides `aten::to` with functions that record the argument and call torch's own functions. Call
// it once, when the plugin is installed.
void watch_forced_copies();

}  // namespace uvm::torch_plugin
