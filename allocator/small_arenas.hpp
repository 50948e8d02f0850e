// The arenas of an allocator's small objects: one for each stream that has asked for some, by its
// pool of small objects. Arenas last as long as this.
//
// Thread-safe: one thread at a time is inside an arena. Whoever gives the pages takes the
// allocator's lock, so none of this is called under that.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include <uvmalloc/allocator/block.hpp>
#include <uvmalloc/allocator/ranked.hpp>
#include <uvmalloc/allocator/small_arena.hpp>

namespace uvm {

class SmallArenas {
 public:
  // Where the pages of a pool come from and where they go (ExtentSource). Neither may throw.
  struct Pages {
    // `any_facade`: may be of memory that was asked for another one.
    std::function<void*(PoolIndex pool, std::size_t size_bytes, bool any_facade)> take;
    std::function<void(PoolIndex pool, void* run, std::size_t size_bytes)> give_back;
  };
  explicit SmallArenas(Pages pages);
  ~SmallArenas();
  SmallArenas(const SmallArenas&) = delete;
  SmallArenas& operator=(const SmallArenas&) = delete;

  struct Batch {
    std::size_t count = 0;  // fewer than wanted: there are no pages, or none may be taken
    bool took_pages = false;
  };
  // SmallArena::allocate() of that pool's. std::bad_alloc: its arena cannot be made.
  Batch allocate(PoolIndex pool, std::size_t size_bytes, void** out, std::size_t count,
                 bool may_take_pages);
  void free(PoolIndex pool, void* const* blocks, std::size_t count, std::size_t size_bytes);

  // From now on the pool, which has asked before, takes pages of any facade.
  void use_any_facade(PoolIndex pool);
  // Gives back the empty pages of pools of which `wanted` says so.
  void purge(const std::function<bool(PoolIndex pool)>& wanted);
  // Ends all arenas. Their pages are not given back.
  void clear();

  // For forks: nobody is inside meanwhile.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  class Arena;
  Arena& arena_of(PoolIndex pool);

  const Pages pages_;
  Ranked<std::mutex, LockRank::kArena> mutex_;  // guards what follows
  bool closed_ = false;
  std::vector<std::unique_ptr<Arena>> arenas_;  // by pool / kPoolsPerStream
};

}  // namespace uvm
