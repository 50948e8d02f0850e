// Finds a block that is free already: in the request's pool, displaced by a move, in the other
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

  // The places that were searched for a request, and the block that was found.
  enum class Searched : unsigned char { kNothing, kPool, kAll };
  struct Taken {
    PageBlock* block = nullptr;
    Searched searched = Searched::kNothing;
  };
  // Takes a block of another pool whose pages are here. For a pool without free blocks of its own.
  Taken take_displaced(const LockedHeap& heap, const Request& request);

  // Searches the pool's own blocks, then blocks displaced to it, then its blocks that are displaced
  // elsewhere and have no pending work there (DisplacedBlocks). Skips what `searched` names.
  Found find(const Request& request, Searched searched = Searched::kNothing);

  // Turns whole free pages of the other pool of a host stream into a block of the request's pool,
  // in no index. nullptr: there are none.
  PageBlock* borrow(const Request& request);

  // steal() and steal_page() wait for the device. They take the block before that, because a block
  // freed meanwhile may have pending work.
  //
  // Takes a block of another stream.
  Found steal(const Request& request);
  // For a small object: frees a page of another stream into the request's pool. False: there is
  // none.
  bool steal_page(const Request& request);

 private:
  PageBlock* transfer(const LockedHeap& heap, const Pool& lender, const PageRun& pages, Pool& pool);
  PageBlock* take_displaced_here(const LockedHeap& heap, const Request& request, PoolIndex pools);
  template <class Take>
  PageBlock* take_of_other_stream(const Request& request, Take take);

  Machine& machine_;
  HeapState& state_;
  FencedBlocks& fenced_;
  DisplacedBlocks& displaced_;
};

}  // namespace uvm
