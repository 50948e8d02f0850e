// Gives cached memory back: whole free pages to their spans, where they are discarded if that frees
// them, and empty spans to the driver. One thread at a time: another that needs memory must find
// what is on its way back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include <uvmalloc/allocator/engine/block_returner.hpp>
#include <uvmalloc/allocator/engine/fenced_blocks.hpp>
#include <uvmalloc/allocator/engine/hint_dispatcher.hpp>
#include <uvmalloc/allocator/engine/request.hpp>

namespace uvm {

class Reclaimer {
 public:
  Reclaimer(Machine& machine, HeapState& state, SmallArenas& arenas, FencedBlocks& fenced,
            HintDispatcher& hints, BlockReturner& returner)
      : machine_(machine),
        state_(state),
        arenas_(arenas),
        fenced_(fenced),
        hints_(hints),
        returner_(returner) {}
  Reclaimer(const Reclaimer&) = delete;
  Reclaimer& operator=(const Reclaimer&) = delete;

  // CachingManagedAllocator::release_cached() and release_cached_of().
  void release_cached();
  void release_cached_of(Facade facade);
  void release_cached_of(int device, std::uint64_t private_pool);

  // For a request that would fail otherwise: what threads cache and, unless there is a capture,
  // what is behind fences goes back to its pools.
  void reclaim_all_and_fenced(const Request& request);

  // Whole free pages of all pools, at most about `most_bytes`. Returns what has left the pools.
  std::size_t release_pages(std::size_t most_bytes);
  // Before another span is taken for a host facade. A free span there serves requests up to its
  // size alone, so sizes that vary would leave ever more of them: they are held to a part of what
  // is in use.
  void release_surplus_spans(const Request& request);
  // Touched bytes in free blocks that could go back to the driver now.
  std::size_t idle_bytes(const LockedHeap& heap) const;

 private:
  using PoolFilter = std::function<bool(const LockedHeap& heap, const Pool& pool)>;
  // What leaves the pools in one release.
  struct Departure {
    bool is_of_all = false;       // all whole pages, and nothing else says what goes
    std::set<const Span*> spans;  // whose pages all go
    std::size_t pages_bytes = 0;  // that still go, of spans that give pages back
    std::size_t left_bytes = 0;   // that have gone
    std::vector<Fence> fences;    // of blocks that have gone
  };
  // Pages of no pool any more and not yet their spans'.
  struct Detached {
    static constexpr int kNobody = -1;
    BlockPools::Pages pages;
    int user_device = kNobody;  // that may still work on them, beside their span's
  };

  void release_cached_where(const PoolFilter& wanted);
  std::size_t release_pages_of(const PoolFilter& wanted, std::size_t most_bytes);
  std::vector<const Span*> idle_spans(const LockedHeap& heap, const PoolFilter& wanted) const;
  Departure departure_of(const LockedHeap& heap, const PoolFilter& wanted,
                         std::size_t most_bytes) const;
  void detach_free_pages(const LockedHeap& heap, const Pool& pool, Departure* departure);
  std::set<int> devices_to_wait_for(const LockedHeap&) const;
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
  Ranked<std::mutex, LockRank::kRelease> mutex_;  // one release at a time
  std::vector<Detached> detached_;                // guarded by the state lock
};

}  // namespace uvm
