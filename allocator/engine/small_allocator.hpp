// Serves small objects in batches from the arena of a stream, and arenas with segments.
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
    Block* block = nullptr;  // for the caller; its thread's cache has the rest of the batch
    bool took_page = false;
    bool thread_is_past = false;  // no arena serves this thread any more
  };
  // A batch from the arena, which may grow into `most`.
  Refill refill(const Request& request, SmallArenas::Growth most);

  // For arenas, with their locks held: a segment of the stream's free memory, else of a free page
  // of a span, under the budget.
  SmallArenas::Segment take_segment(PoolIndex pool, SmallArenas::Growth most) noexcept;
  void return_segment(void* base) noexcept;

 private:
  HeapState& state_;
  ThreadCaches& caches_;
  SmallArenas& arenas_;
  PageGrower& grower_;
};

}  // namespace uvm
