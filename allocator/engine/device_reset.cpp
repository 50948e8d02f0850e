#include "allocator/engine/device_reset.hpp"

#include "runtime/log.hpp"

namespace uvm {

// Returns the live blocks in all spans that the device's context owned, of any memory kind.
std::vector<void*> DeviceReset::live_blocks_of(int device) const {
  std::vector<void*> found;
  const HeapGuard heap(state_);
  for (const auto& span : heap->spans.spans()) {
    // Ordinary memory belongs to the process, not to the context.
    if (span->device != device || span->ordinary) continue;
    heap->pools.directory().each_block(*span, [&](const Block& block) {
      if (block.now() == BlockState::kLive) found.push_back(block.address());
    });
  }
  return found;
}

std::vector<void*> DeviceReset::forget(int device) {
  machine_.check_device(device);
  if (machine_.in_forked_child()) return {};
  const std::lock_guard lock(mutex_);
  // From now on, the runtime treats the device as idle: fences have finished, waits return at once,
  // and memory counts as given back.
  machine_.runtime.lose_context(device);
  struct Renewal {
    ~Renewal() { machine.runtime.renew_context(device); }
    Machine& machine;
    int device;
  } renewal{machine_, device};
  live_.end();
  for (const DeviceStream& stream : stream_pools_.streams_of(device)) stream_pools_.retire(stream);
  machine_.stream_work.note_idle(device);
  std::vector<void*> lost = live_blocks_of(device);
  for (void* address : lost) returns_.free_block(address);
  fenced_.drain_all();
  hints_.forget_pending();
  reclaimer_.release_spans_of(device);
  groups_.forget_device(device);
  machine_.sender.forget_device(device);
  machine_.events.forget_device(device);
  log(LogLevel::kInfo, "device {} was reset: {} blocks in use ended with it", device, lost.size());
  return lost;
}

}  // namespace uvm
