// The arenas of an allocator's small objects: one for each stream that has asked for some, by its
// pool of shared pages. Arenas last as long as this.
//
// Thread-safe: one thread at a time is inside an arena. Whoever gives the segments takes the
// allocator's lock, so none of this is called under that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include <uvmalloc/allocator/heap/block.hpp>
#include <uvmalloc/allocator/small/small_arena.hpp>
#include <uvmalloc/runtime/ranked.hpp>

namespace uvm {

class SmallArenas {
 public:
  // Where an arena may grow, each including those before it.
  enum class Growth : std::uint8_t { kFreeMemory, kNewPages, kNewPagesOfAnyFacade, kBeyondBudget };
  struct Segment {
    void* base = nullptr;  // nullptr: there is none
    bool is_new_page = false;
  };
  // Where the segments of a pool come from and where they go (ExtentSource). None may throw.
  struct Segments {
    std::function<Segment(PoolIndex pool, Growth most)> take;
    std::function<void(void* base)> give_back;
    std::function<bool(const void* address)> owns;
  };
  explicit SmallArenas(Segments segments);
  ~SmallArenas();
  SmallArenas(const SmallArenas&) = delete;
  SmallArenas& operator=(const SmallArenas&) = delete;

  struct Batch {
    std::size_t count = 0;  // fewer than wanted: it cannot grow, or must not
    bool took_page = false;
    // The thread ends, and no arena serves it any more (SmallArena::allocate()).
    bool thread_is_past = false;
  };
  // SmallArena::allocate() of that pool's. std::bad_alloc: its arena cannot be made.
  Batch allocate(PoolIndex pool, std::size_t size_bytes, void** out, std::size_t count,
                 Growth most);
  void free(PoolIndex pool, void* const* blocks, std::size_t count, std::size_t size_bytes);

  // Gives back the empty segments of pools of which `wanted` says so.
  void purge(const std::function<bool(PoolIndex pool)>& wanted);
  // Ends all arenas. Their segments are not given back.
  void clear();

  // For forks: nobody is inside meanwhile.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  class Arena;
  Arena& arena_of(PoolIndex pool);

  const Segments segments_;
  Ranked<std::mutex, LockRank::kArena> mutex_;  // guards what follows
  bool closed_ = false;
  std::vector<std::unique_ptr<Arena>> arenas_;  // by pool / kPoolsPerStream
};

}  // namespace uvm
