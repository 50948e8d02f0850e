#include "preload/deferred_frees.hpp"

#include <utility>

#include "allocator/interface.hpp"
#include "preload/policy.hpp"

namespace uvm::preload {

DeferredFrees::DeferredFrees(CachingManagedAllocator& allocator)
    : allocator_(allocator), devices_(allocator.inspection().devices().size()) {}

void DeferredFrees::add(int device, void* address, std::size_t size_bytes) {
  bool is_full = false;
  {
    std::lock_guard lock(mutex_);
    OfDevice& of = devices_[static_cast<std::size_t>(device)];
    if (of.batches.empty()) of.batches.emplace_back();
    of.batches.back().push_back(address);
    ++of.blocks;
    of.bytes += size_bytes;
    is_full = of.blocks >= policy::kMostDeferredBlocks || of.bytes >= policy::kMostDeferredBytes;
  }
  if (is_full) wait_and_free(device);
}

bool DeferredFrees::free_after(int device, const Wait& wait) {
  OfDevice taken;
  {
    // Take the blocks before the wait, because the wait may not cover the last use of a block added
    // later.
    std::lock_guard lock(mutex_);
    taken = std::exchange(devices_[static_cast<std::size_t>(device)], {});
  }
  const bool waited = wait();
  if (taken.blocks == 0) return false;
  if (!waited) {
    // The wait failed because a stream is capturing or the device is lost, so keep the blocks
    // deferred.
    std::lock_guard lock(mutex_);
    OfDevice& of = devices_[static_cast<std::size_t>(device)];
    of.batches.splice(of.batches.end(), taken.batches);
    of.blocks += taken.blocks;
    of.bytes += taken.bytes;
    return false;
  }
  for (const auto& batch : taken.batches) {
    for (void* address : batch) allocator_.free(address);
  }
  return true;
}

void DeferredFrees::forget(const std::unordered_set<const void*>& ended) {
  const std::lock_guard lock(mutex_);
  for (OfDevice& of : devices_) {
    for (auto& batch : of.batches) {
      of.blocks -= std::erase_if(batch, [&](void* address) { return ended.contains(address); });
    }
    if (of.blocks == 0) of = {};
  }
}

bool DeferredFrees::wait_and_free() {
  bool freed = false;
  for (std::size_t device = 0; device < devices_.size(); ++device) {
    freed |= wait_and_free(static_cast<int>(device));
  }
  return freed;
}

bool DeferredFrees::wait_and_free(int device) {
  {
    std::lock_guard lock(mutex_);
    if (devices_[static_cast<std::size_t>(device)].blocks == 0) return false;
  }
  return free_after(device, [&] { return allocator_.streams().wait_for_device(device); });
}

}  // namespace uvm::preload
