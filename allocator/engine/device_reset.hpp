// Forgets the allocator's memory, streams and events of a device after the program has destroyed
// them together with the device's context, by cudaDeviceReset or a similar call. Makes no call to
// the device. Thread-safe; one thread at a time.
#pragma once

#include <mutex>
#include <vector>

#include "allocator/placement/block_groups.hpp"
#include "allocator/placement/live_planner.hpp"
#include "allocator/reclaim/reclaimer.hpp"
#include "allocator/state/block_returner.hpp"
#include "allocator/state/hint_dispatcher.hpp"
#include "allocator/streams/fenced_blocks.hpp"
#include "allocator/streams/stream_pools.hpp"

namespace uvm {

class DeviceReset {
 public:
  DeviceReset(Machine& machine, HeapState& state, HintDispatcher& hints, FencedBlocks& fenced,
              StreamPools& stream_pools, Reclaimer& reclaimer, LivePlanner& live,
              BlockGroups& groups, ReturnsBlocks& returns)
      : machine_(machine),
        state_(state),
        hints_(hints),
        fenced_(fenced),
        stream_pools_(stream_pools),
        reclaimer_(reclaimer),
        live_(live),
        groups_(groups),
        returns_(returns) {}
  DeviceReset(const DeviceReset&) = delete;
  DeviceReset& operator=(const DeviceReset&) = delete;

  // Frees the live blocks in memory of the device's context, and returns their addresses. Takes the
  // state lock itself. Throws std::out_of_range if the device does not exist.
  std::vector<void*> forget(int device);

 private:
  std::vector<void*> live_blocks_of(int device) const;

  Machine& machine_;
  HeapState& state_;
  HintDispatcher& hints_;
  FencedBlocks& fenced_;
  StreamPools& stream_pools_;
  Reclaimer& reclaimer_;
  LivePlanner& live_;
  BlockGroups& groups_;
  ReturnsBlocks& returns_;
  std::mutex mutex_;
};

}  // namespace uvm
