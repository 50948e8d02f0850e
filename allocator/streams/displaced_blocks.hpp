// Finds free blocks of a host pool that a move displaced to the pool of a device's stream, because
// their pages are on the device (Note "Displaced blocks"). That stream may use such a block at
// once. The pool that owns the block may use it again after the block's fences are over. The class
// also bounds how far the host runs ahead of the devices. Without a bound, a loop that makes
// batches on the host and moves them would take new memory for each batch.
//
// Thread-safe. All functions take the state lock and may call the driver. Not for use in a capture.
#pragma once

#include <cstdint>
#include <vector>

#include "allocator/state/request.hpp"
#include "allocator/streams/fenced_blocks.hpp"

namespace uvm {

class DisplacedBlocks {
 public:
  DisplacedBlocks(HeapState& state, StreamWork& work, FencedBlocks& fenced)
      : state_(state), work_(work), fenced_(fenced) {}
  DisplacedBlocks(const DisplacedBlocks&) = delete;
  DisplacedBlocks& operator=(const DisplacedBlocks&) = delete;

  // Takes back a block that was displaced from the request's pool and whose fences are over. Always
  // finds such a block if one fits. The caller must move the block's pages back to the host.
  Found recall(const Request& request);

  // Called before a host request takes new pages. Drops fences that are over. For pageable memory,
  // then waits for the oldest blocks while all blocks that wait for a device hold more than
  // policy::kHostLeadBytes and more than policy::kHostLeadBlocks times the request. Pinned memory
  // has no such bound, as in torch's own allocator: programs use pinned memory so that the host
  // need not wait. Returns true if a block may be found now.
  bool hold_lead(const Request& request);

  // Drops finished fences of displaced blocks, so that the blocks can be joined with neighbours.
  void shed_finished_fences();

 private:
  // A fence that is not over. Later fences of its stream cannot be over either.
  struct Pending {
    DeviceStream stream;
    std::uint64_t displaced_at;
  };
  bool is_pending(const LockedHeap& heap, const PageBlock& block,
                  const std::vector<Pending>& pending) const;
  const Fence* first_pending(const std::vector<Fence>& fences) const;
  // A block that is in no index until put_back() returns it.
  struct Taken {
    PageBlock* block = nullptr;
    std::uint64_t displaced_at = 0;
    std::vector<Fence> fences = {};
  };
  void shed_finished_fences_of(PoolIndex owning_pool);
  Taken take_oldest_fenced(const LockedHeap& heap, const Pool& owning_pool, std::uint64_t after);
  void put_back(const Taken& taken, bool without_fences);

  HeapState& state_;
  StreamWork& work_;
  FencedBlocks& fenced_;
};

}  // namespace uvm
