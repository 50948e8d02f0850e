// Free blocks of a host pool whose pages are on a device: a move displaced them to the pool of the
// device's stream. The stream may use such a block at once. Its home may use it once the block's
// fences are over. This class finds those for the home, and bounds how far the host runs ahead of
// the devices: without a bound, a loop that makes a batch on the host and moves it would take new
// memory for each batch until somebody waits.
//
// Thread-safe. All functions take the state lock themselves and may call the driver, so none is
// called during a capture.
#pragma once

#include <cstdint>
#include <vector>

#include "allocator/engine/fenced_blocks.hpp"
#include "allocator/engine/request.hpp"

namespace uvm {

class DisplacedBlocks {
 public:
  DisplacedBlocks(HeapState& state, StreamWork& work, FencedBlocks& fenced)
      : state_(state), work_(work), fenced_(fenced) {}
  DisplacedBlocks(const DisplacedBlocks&) = delete;
  DisplacedBlocks& operator=(const DisplacedBlocks&) = delete;

  // A block of the request's pool that is displaced elsewhere and whose fences are over. Its pages
  // have to come back. If there is such a block that fits, it is found.
  Found recall(const Request& request);

  // Before a host request takes new pages: drops fences that are over. Then, for pageable memory,
  // waits for the oldest blocks while more than policy::kHostLeadBytes, and more than
  // policy::kHostLeadBlocks requests like this one, wait for a device. Pinned memory has no such
  // bound, as with torch's own allocator: its owner asked for work that nobody waits for. True: a
  // block may be found now.
  bool hold_lead(const Request& request);

  // Drops the fences of displaced blocks that are over. Such blocks can be joined with others.
  void shed_finished_fences();

 private:
  // A fence that is not over. Neither are later fences of its stream.
  struct Pending {
    DeviceStream stream;
    std::uint64_t displaced_at;
  };
  bool is_pending(const LockedHeap& heap, const RunBlock& block,
                  const std::vector<Pending>& pending) const;
  const Fence* first_pending(const std::vector<Fence>& fences) const;
  // A block in no index, until it is put back.
  struct Taken {
    RunBlock* block = nullptr;
    std::uint64_t displaced_at = 0;
    std::vector<Fence> fences = {};
  };
  void shed_finished_fences_of(PoolIndex home);
  Taken take_oldest_fenced(const LockedHeap& heap, const Pool& home, std::uint64_t after);
  void put_back(const Taken& taken, bool without_fences);

  HeapState& state_;
  StreamWork& work_;
  FencedBlocks& fenced_;
};

}  // namespace uvm
