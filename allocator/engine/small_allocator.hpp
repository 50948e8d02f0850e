// Small objects: batches from the arena of a stream, and the segments that arenas lie in.
#pragma once

#include <uvmalloc/allocator/cache/thread_caches.hpp>
#include <uvmalloc/allocator/engine/page_grower.hpp>
#include <uvmalloc/allocator/small/small_arenas.hpp>

namespace uvm {

class SmallAllocator {
 public:
  SmallAllocator(HeapState& state, ThreadCaches& caches, SmallArenas& arenas, PageGrower& grower)
      : state_(state), caches_(caches), arenas_(arenas), grower_(grower) {}
  SmallAllocator(const SmallAllocator&) = delete;
  SmallAllocator& operator=(const SmallAllocator&) = delete;

  struct Refill {
    Block* block = nullptr;  // for the caller; the rest of the batch is in its thread's cache
    bool took_page = false;
    bool thread_is_past = false;  // no arena serves this thread any more
  };
  // A batch from the arena, which may grow so far.
  Refill refill(const Request& request, SmallArenas::Growth most);

  // For arenas, with their locks held: a part of the stream's free memory, else of a page that a
  // span has ready, under the budget.
  SmallArenas::Segment take_segment(PoolIndex pool, SmallArenas::Growth most) noexcept;
  void return_segment(void* base) noexcept;

 private:
  HeapState& state_;
  ThreadCaches& caches_;
  SmallArenas& arenas_;
  PageGrower& grower_;
};

}  // namespace uvm
