// Free blocks of a host pool whose pages are on a device, because a move displaced them to the pool
// of the device's stream (Note "Displaced blocks"). The stream may use such a block at once; its
// owning pool may use it once the block's fences are over. This class finds those blocks for the
// owning pool pool. It also bounds how far the host runs ahead of the devices. Without a bound, a
// loop that makes batches on the host and moves them would take new memory for each batch.
//
// Thread-safe. All functions take the state lock themselves and may call the driver, so do not call
// them during a capture.
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

  // Takes back a block of the request's pool that is displaced elsewhere and whose fences are over.
  // Its pages have to come back. Finds such a block if one fits.
  Found recall(const Request& request);

  // Called before a host request takes new pages: drops fences that are over. For pageable memory
  // it then waits for the oldest blocks while too many bytes wait for a device: more than
  // policy::kHostLeadBytes, and more than policy::kHostLeadBlocks such requests. Pinned memory has
  // no bound, as with torch's own allocator: its owner wants work that the host does not wait for.
  // True: a block may be found now.
  bool hold_lead(const Request& request);

  // Drops the fences of displaced blocks that are over. Such blocks can be joined with neighbours.
  void shed_finished_fences();

 private:
  // A fence that is not over. Later fences of its stream are not over either.
  struct Pending {
    DeviceStream stream;
    std::uint64_t displaced_at;
  };
  bool is_pending(const LockedHeap& heap, const PageBlock& block,
                  const std::vector<Pending>& pending) const;
  const Fence* first_pending(const std::vector<Fence>& fences) const;
  // A block that is in no index until it is put back.
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
