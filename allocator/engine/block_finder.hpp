// Finds a block that is free already: in the request's pool, displaced by a move, in the other
// class of a host facade, or on another stream.
#pragma once

#include "allocator/engine/displaced_blocks.hpp"
#include "allocator/engine/request.hpp"

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
    RunBlock* block = nullptr;
    Searched searched = Searched::kNothing;
  };
  // After the pool's own blocks: a block of another pool whose pages are here.
  Taken take_displaced(const LockedHeap& heap, const Request& request);

  // Searches the pool's own blocks, then blocks displaced to it, then its blocks that are displaced
  // elsewhere and have no work pending there (DisplacedBlocks). Places that were searched are left
  // out.
  Found find(const Request& request, Searched searched = Searched::kNothing);

  // Whole pages that lie free in the other pool of a host facade become a block of the request's
  // pool, in no index. nullptr: there are none.
  RunBlock* borrow(const Request& request);

  // These wait for the device. The block is taken before that: a block freed meanwhile may have
  // work pending.
  //
  // A block of another stream.
  Found steal(const Request& request);
  // For a small object: a page of another stream, which becomes free in the request's pool. False:
  // there is none.
  bool steal_page(const Request& request);

 private:
  RunBlock* transfer(const LockedHeap& heap, const Pool& lender, const PageRun& pages, Pool& pool);
  RunBlock* take_displaced_here(const LockedHeap& heap, const Request& request, PoolIndex pools);
  template <class Take>
  RunBlock* take_of_other_stream(const Request& request, Take take);

  Machine& machine_;
  HeapState& state_;
  FencedBlocks& fenced_;
  DisplacedBlocks& displaced_;
};

}  // namespace uvm
