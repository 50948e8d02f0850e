// Tells the allocator which tensors torch's operators use, forward and backward, while it plans
// moves (docs/oversubscription.md). Otherwise torch calls nothing of ours: the callback is added
// when a plan begins and removed when it ends.
#pragma once

namespace uvm {
class CachingManagedAllocator;
}

namespace uvm::torch_plugin {

void watch_operators(CachingManagedAllocator& allocator);

}  // namespace uvm::torch_plugin
