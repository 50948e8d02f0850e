// Reports to the allocator which tensors torch's operators use, forward and backward, while the
// allocator plans moves (docs/internals/oversubscription.md). The callback is added when a plan or
// the capture of a graph begins, and removed when it ends. At other times torch calls no function
// of this file.
#pragma once

#include <cstdint>

namespace uvm {
class CachingManagedAllocator;
}

namespace uvm::torch_plugin {

enum class Watcher : std::uint8_t { kPlan, kCapture };

// While any watcher is on, the allocator or CapturedGraphs receives all threads' operators.
void watch_operators(Watcher watcher, bool watches);

// Watches operators while the allocator requests their uses.
void watch_operators_for(CachingManagedAllocator& allocator);

}  // namespace uvm::torch_plugin
