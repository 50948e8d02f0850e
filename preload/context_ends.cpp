#include "preload/context_ends.hpp"

#include "allocator/process/process_allocator.hpp"
#include "preload/captures.hpp"
#include "preload/registered_memory.hpp"
#include "preload/served_memory.hpp"

namespace uvm::preload {

void prepare_for_reset() noexcept {
  if (CachingManagedAllocator* ours = process_allocator()) ours->streams().finish_prefetches();
}

void note_device_reset(int device) {
  OpenCaptures::instance().remove_all_of(device);
  CachingManagedAllocator* ours = process_allocator();
  if (ours == nullptr || ours->inspection().in_forked_child()) return;
  if (device >= ours->inspection().runtime().device_count()) return;
  const std::vector<void*> lost = ours->streams().forget_device(device);
  if (ServedMemory* served = ServedMemory::existing()) served->forget_device(device, lost);
  RegisteredMemory::instance().forget_ended_blocks();
}

}  // namespace uvm::preload
