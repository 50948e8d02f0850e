// The arenas of an allocator's small objects, one for each stream that has requested any. The
// stream's packed pool identifies its arena. Arenas live as long as this object.
//
// Thread-safe: one thread at a time is inside an arena. The source of segments takes the state
// lock, so do not hold the state lock when you call these functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "allocator/heap/block.hpp"
#include "allocator/small/small_arena.hpp"
#include "runtime/ranked.hpp"

namespace uvm {

class SmallArenas {
 public:
  // The memory into which an arena may grow. Each value includes those before it.
  enum class Growth : std::uint8_t { kFreeMemory, kNewPages, kNewPagesOfAnyFacade, kBeyondBudget };
  struct Segment {
    void* base = nullptr;  // nullptr if no segment is available
    bool is_new_page = false;
  };
  // Provides the segments of pools (ExtentSource). Arenas call it while they hold their locks.
  class SegmentSource {
   public:
    virtual ~SegmentSource() = default;
    virtual Segment take_segment(PoolIndex pool, Growth most) noexcept = 0;
    virtual void return_segment(void* base) noexcept = 0;
    virtual bool is_ours(const void* address) const noexcept = 0;
  };
  explicit SmallArenas(SegmentSource& segments);
  ~SmallArenas();
  SmallArenas(const SmallArenas&) = delete;
  SmallArenas& operator=(const SmallArenas&) = delete;

  struct Batch {
    std::size_t count = 0;  // smaller than requested if the arena cannot or must not grow
    bool took_page = false;
    // The thread is ending, and no arena can serve it any more (SmallArena::allocate()).
    bool thread_is_exiting = false;
  };
  // Allocates from the pool's arena, like SmallArena::allocate(). Throws std::bad_alloc if the
  // arena cannot be made. Logs once if this build of jemalloc cannot serve an arena.
  Batch allocate(PoolIndex pool, std::size_t size_bytes, void** out, std::size_t count,
                 Growth most);
  void free(PoolIndex pool, void* const* blocks, std::size_t count, std::size_t size_bytes);

  // Gives back the empty segments of the pools for which `wanted` returns true.
  void purge(const std::function<bool(PoolIndex pool)>& wanted);
  // Destroys all arenas; no thread may use them any more. Their segments are not given back.
  void clear() UVM_NOT_ANALYSED;

  // Held around a fork, so that no thread is inside an arena during it.
  void lock() UVM_ACQUIRE(mutex_) { mutex_.lock(); }
  void unlock() UVM_RELEASE(mutex_) { mutex_.unlock(); }

 private:
  class Arena;
  Arena& arena_of(PoolIndex pool) UVM_REQUIRES(mutex_);

  SegmentSource& segments_;
  Ranked<std::mutex, LockRank::kArena> mutex_;
  bool closed_ = false;  // set when no thread uses the arenas any more
  std::vector<std::unique_ptr<Arena>> arenas_ UVM_GUARDED_BY(mutex_);  // by position(StreamIndex)
};

}  // namespace uvm
