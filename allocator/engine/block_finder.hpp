// Finds a block that is already free: in the request's pool, displaced by a move, in the other
// class of a host pool, or on another stream. Thread-safe; functions without a LockedHeap take the
// state lock themselves.
#pragma once

#include "allocator/state/request.hpp"
#include "allocator/streams/displaced_blocks.hpp"

namespace uvm {

class BlockFinder {
 public:
  BlockFinder(Machine& machine, HeapState& state, FencedBlocks& fenced, DisplacedBlocks& displaced)
      : machine_(machine), state_(state), fenced_(fenced), displaced_(displaced) {}
  BlockFinder(const BlockFinder&) = delete;
  BlockFinder& operator=(const BlockFinder&) = delete;

  // The block that was found for a request, and the places that were searched.
  enum class Searched : unsigned char { kNothing, kPool, kAll };
  struct Taken {
    PageBlock* block = nullptr;
    Searched searched = Searched::kNothing;
  };
  // Takes a block of another pool that is displaced to the request's stream. Called if no own free
  // block of the request's pool fits.
  Taken take_displaced(const LockedHeap& heap, const Request& request);

  // Searches the pool's own blocks, then blocks displaced to the pool, then the pool's blocks that
  // are displaced to other pools and have no pending work (DisplacedBlocks). Skips what is in
  // `searched`.
  Found find(const Request& request, Searched searched = Searched::kNothing);

  // Turns whole free pages of a host stream's other pool into a block of the request's pool. The
  // block is in no index. Returns nullptr if the other pool has no such pages.
  PageBlock* borrow(const Request& request);

  // steal() and steal_page() first take a block of another stream and then wait for the device,
  // because a block that is freed during the wait may have pending work.
  //
  // Takes a block for the request.
  Found steal(const Request& request);
  // Moves a free page of another stream to the pool of a small object. Returns false if no page is
  // free.
  bool steal_page(const Request& request);

 private:
  PageBlock* transfer(const LockedHeap& heap, const Pool& lender, const PageRun& pages, Pool& pool);
  PageBlock* take_displaced_here(const LockedHeap& heap, const Request& request, StreamIndex pools);
  template <class Take>
  PageBlock* take_of_other_stream(const Request& request, Take take);

  Machine& machine_;
  HeapState& state_;
  FencedBlocks& fenced_;
  DisplacedBlocks& displaced_;
};

}  // namespace uvm
