// Gives cached memory back: whole free pages to their spans, and empty spans to the driver. Spans
// discard free pages if that frees memory. Thread-safe; takes the state lock itself. One thread at
// a time gives memory back, so a second thread that is short of memory finds the memory already
// given back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "allocator/state/block_returner.hpp"
#include "allocator/state/hint_dispatcher.hpp"
#include "allocator/state/request.hpp"
#include "allocator/streams/fenced_blocks.hpp"
#include "allocator/streams/stream_pools.hpp"

namespace uvm {

class Reclaimer {
 public:
  Reclaimer(Machine& machine, HeapState& state, SmallArenas& arenas, FencedBlocks& fenced,
            HintDispatcher& hints, BlockReturner& returner, StreamPools& stream_pools)
      : machine_(machine),
        state_(state),
        arenas_(arenas),
        fenced_(fenced),
        hints_(hints),
        returner_(returner),
        stream_pools_(stream_pools) {}
  Reclaimer(const Reclaimer&) = delete;
  Reclaimer& operator=(const Reclaimer&) = delete;

  // Give back all cached memory, or that of one memory kind, or that of one private pool without
  // users. Wait for blocks behind fences. Do nothing during a capture or in a forked child.
  void release_cached();
  void release_cached_of(Facade facade);
  void release_cached_of(int device, std::uint64_t private_pool);
  // Gives back the free pages of ReservedAddresses, as release_cached() does.
  void release_reserved();
  // Called after a reset of the device, which has destroyed its managed memory. Removes all free
  // pages of that memory from all pools, and logs how much memory stays reserved.
  void release_spans_of(int device);

  // For a request that would otherwise fail. Returns the blocks in thread caches to their pools and
  // waits for the blocks behind fences. Does not wait during a capture.
  void reclaim_all_and_fenced(const Request& request);

  // Releases whole free pages of all pools, at most about `most_bytes`. Returns the bytes released.
  std::size_t release_pages(std::size_t most_bytes);
  // Called before host or pinned memory gets another span. If idle spans hold too much compared
  // with the bytes in use, releases some of these spans. A free span serves only requests up to its
  // size, so requests of varying sizes would otherwise leave ever more idle spans.
  void release_surplus_spans(const Request& request);
  // Returns the touched bytes in free blocks that could go back to the driver now.
  std::size_t idle_bytes(const LockedHeap& heap) const;

 private:
  using PoolFilter = std::function<bool(const LockedHeap& heap, const Pool& pool)>;
  // The pages that one release detaches from the pools.
  struct Departure {
    bool is_of_all = false;       // all whole pages are detached
    std::set<const Span*> spans;  // all pages of these spans are detached
    bool takes_fenced = false;    // blocks of these spans are detached even if they have fences
    std::size_t pages_bytes = 0;  // bytes still to detach, page by page, from other spans
    std::size_t left_bytes = 0;   // bytes detached so far
    std::vector<Fence> fences;    // the fences of detached blocks
  };
  // Pages that have left their pool but are not yet free in their span.
  struct Detached {
    static constexpr int kNobody = -1;
    PageRun pages;
    int user_device = kNobody;  // this device and the span's device may still use the pages
  };

  // Pools with users are included if the filter wants them.
  void release_cached_where(const PoolFilter& wanted);
  std::size_t release_pages_of(const PoolFilter& wanted, std::size_t most_bytes);
  using Choose = std::function<Departure(const LockedHeap& heap)>;
  std::size_t release_chosen(const PoolFilter& wanted, const Choose& choose);
  std::vector<const Span*> idle_spans(const LockedHeap& heap, const PoolFilter& wanted) const;
  Departure departure_of(const LockedHeap& heap, const PoolFilter& wanted,
                         std::size_t most_bytes) const;
  std::vector<PageBlock*> free_blocks(const LockedHeap& heap, const Pool& pool,
                                      const PoolFilter& wanted, bool fenced_too) const;
  void detach_free_pages(const LockedHeap& heap, const Pool& pool, const PoolFilter& wanted,
                         Departure* departure);
  std::set<int> devices_to_wait_for(const LockedHeap& heap) const;
  std::vector<std::unique_ptr<Span>> attach_to_spans(const LockedHeap& heap);
  void free_spans(std::vector<std::unique_ptr<Span>> spans) noexcept;
  void discard_free_pages();
  void discard_free_pages_of(Span* span);
  bool try_to_discard(const SpanStore::Run& run) noexcept;

  Machine& machine_;
  HeapState& state_;
  SmallArenas& arenas_;
  FencedBlocks& fenced_;
  HintDispatcher& hints_;
  BlockReturner& returner_;
  StreamPools& stream_pools_;
  Ranked<std::mutex, LockRank::kRelease> mutex_;  // one release at a time
  std::vector<Detached> detached_ UVM_GUARDED_BY(state_);
};

}  // namespace uvm
