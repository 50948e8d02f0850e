// Tells the allocator which tensors torch's operators use, forward and backward, while it plans
// moves (docs/oversubscription.md). Otherwise torch calls nothing of ours: the callback is added
// when a plan or the capture of a graph begins, and removed when it ends.
#pragma once

#include <cstdint>

namespace uvm {
class CachingManagedAllocator;
}

namespace uvm::torch_plugin {

enum class Watcher : std::uint8_t { kPlan, kCapture };

// While somebody watches, the allocator or CapturedGraphs hears of each operator, of all threads.
void watch_operators(Watcher watcher, bool watches);

// Watches while the allocator wants uses.
void watch_operators_for(CachingManagedAllocator& allocator);

}  // namespace uvm::torch_plugin
