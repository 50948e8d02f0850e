// Serves small objects in batches from the arena of a stream, and gives segments to arenas (Note
// "Small arenas"). Thread-safe; takes the state lock itself.
#pragma once

#include "allocator/cache/thread_caches.hpp"
#include "allocator/engine/page_grower.hpp"
#include "allocator/small/small_arenas.hpp"

namespace uvm {

class SmallAllocator {
 public:
  SmallAllocator(HeapState& state, ThreadCaches& caches, SmallArenas& arenas, PageGrower& grower)
      : state_(state), caches_(caches), arenas_(arenas), grower_(grower) {}
  SmallAllocator(const SmallAllocator&) = delete;
  SmallAllocator& operator=(const SmallAllocator&) = delete;

  struct Refill {
    Block* block = nullptr;  // for the caller; the rest of the batch is in the thread's cache
    bool took_page = false;
    bool thread_is_exiting = false;  // no arena serves a thread that is ending
  };
  // Gets a batch of objects from the arena, which may grow as far as `most`.
  Refill refill(const Request& request, SmallArenas::Growth most);

  // Called by arenas under their locks. Takes a segment from the stream's free memory, or else from
  // a free page of a span, within the budget.
  SmallArenas::Segment take_segment(PoolIndex pool, SmallArenas::Growth most) noexcept;
  void return_segment(void* base) noexcept;

 private:
  HeapState& state_;
  ThreadCaches& caches_;
  SmallArenas& arenas_;
  PageGrower& grower_;
};

}  // namespace uvm
