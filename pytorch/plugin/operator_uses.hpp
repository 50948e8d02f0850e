// Reports which tensors torch's operators use, forward and backward: to the allocator while it
// plans moves (docs/internals/oversubscription.md), and to the preloaded library while a graph is
// captured. The callback is added when a plan or a capture begins, and removed when it ends. At
// other times torch calls no function of this file. Thread-safe.
#pragma once

namespace uvm {
class CachingManagedAllocator;
}

namespace uvm::torch_plugin {

class DevicePools;

// Call end_capture() once for each begin_capture(), even if the capture fails. Between the two
// calls, operators outside captures look for captures of `pools` that have failed.
void begin_capture(DevicePools& pools);
void end_capture();

// Watches operators while the allocator requests their uses.
void watch_operators_for(CachingManagedAllocator& allocator);

}  // namespace uvm::torch_plugin
