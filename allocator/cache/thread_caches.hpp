// The caches of an allocator's threads: made when a thread first needs one, retired when it ends. A
// thread finds its own by thread-local storage, without a lock. Who wants all of them holds them
// frozen: no thread is inside its cache meanwhile, each waits on its next allocation or free.
//
// Rank of locks: the list's mutex, then the caches' own locks, then the allocator's lock.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include <uvmalloc/allocator/cache/thread_cache.hpp>
#include <uvmalloc/allocator/counters/figure_store.hpp>
#include <uvmalloc/allocator/counters/peak_book.hpp>
#include <uvmalloc/runtime/ranked.hpp>

namespace uvm {

class ThreadCaches {
 public:
  // Threads count in `figures`, which outlives the caches. `retired` gets what a cache held when
  // its thread ends, on that thread and without locks, and the first pools of the streams that it
  // had to do with. It must not throw.
  using Retired = std::function<void(BlockChain blocks, const std::vector<PoolIndex>& streams)>;
  ThreadCaches(FigureStore& figures, std::size_t most_bytes, std::uint64_t requests_per_look,
               Retired retired);
  // Closes.
  ~ThreadCaches();
  ThreadCaches(const ThreadCaches&) = delete;
  ThreadCaches& operator=(const ThreadCaches&) = delete;

  // From now on threads that end bring nothing back; waits for one that does. No thread may use the
  // allocator any more, but some may still end. May be called again.
  void close() noexcept;

  // This thread's; nullptr in a thread that is past its thread-local storage, after fork in the
  // child, and where there is no memory for one.
  ThreadCache* mine() noexcept { return slot_.serial == serial_ ? slot_.cache : mine_slowly(); }

  class Frozen {
   public:
    explicit Frozen(ThreadCaches& caches);
    ~Frozen();
    Frozen(const Frozen&) = delete;
    Frozen& operator=(const Frozen&) = delete;

   private:
    ThreadCaches& caches_;
    std::lock_guard<Ranked<std::mutex, LockRank::kCaches>> lock_;
  };

  // With a Frozen alive. Blocks of the stream with that first pool, or all.
  void flush(PoolIndex first, ThreadCache::Kept kept, BlockChain* out) noexcept;
  void flush_all(BlockChain* out) noexcept;
  void close(PoolIndex first, BlockChain* out) noexcept;
  // Pools that were closed, or are a thread's that has ended, are another stream's from now on.
  void rename(PoolIndex first, const StreamKey& key);
  // Tells every thread's cache; takes the locks itself. `*out` gets what is not to be kept any
  // more.
  void keep_large(PoolIndex first);
  void keep_no_large(PoolIndex first, BlockChain* out);
  PeakBook& book() { return book_; }
  // Adds up the present sums, of one place or of all, notes new peaks and shares out the room below
  // them. These need no memory.
  void add_up(std::size_t place);
  void add_up();
  Tally sum(std::size_t place) const;
  std::int64_t peak_live_bytes() const { return peak_live_bytes_; }
  // What the stream with that first pool has had; peaks are sums of the threads' own.
  StreamTally sum_of_stream(PoolIndex first) const;
  std::size_t cached_bytes() const;
  // Of the caches' own tables.
  std::size_t bytes() const;

  // Before a block of the stream with that first pool is handed out: count_elsewhere() and the ends
  // of threads need no memory for it then. Takes the lock itself.
  void make_room(PoolIndex first) {
    if (first / kPoolsPerStream >= streams_with_room_.load(std::memory_order_acquire)) {
      make_more_room(first);
    }
  }
  // Counts for a thread whose cache does not know the stream, for a place and for the stream with
  // that first pool: count(Tally&, StreamTally&). Takes the locks itself.
  template <class Count>
  void count_elsewhere(Count count, std::size_t place, PoolIndex first) noexcept {
    const Frozen frozen(*this);
    count(ended_[place], ended_streams_[first / kPoolsPerStream]);
    add_up();
  }

  // For the child of a fork: this thread's cache is out of use, and nobody gets one any more.
  void abandon() noexcept;

  // Around a fork: nobody is in the list of all allocators, which threads that end look into.
  static void lock_list_for_fork();
  static void unlock_list_after_fork();

 private:
  friend struct ThreadEnd;
  struct Slot {
    std::uint64_t serial = 0;  // of the allocator whose cache it is
    ThreadCache* cache = nullptr;
  };

  ThreadCache* mine_slowly() noexcept;
  ThreadCache* add_cache();
  void retire(ThreadCache* cache) noexcept;
  void take_out(ThreadCache* cache, BlockChain* blocks, std::vector<PoolIndex>* streams) noexcept;
  void make_more_room(PoolIndex first);
  void find_shares();
  void add_up_place(std::size_t place);
  void add_up_live();

  static constinit thread_local Slot slot_;

  const std::uint64_t serial_;
  FigureStore& figures_;
  const std::size_t places_;
  const std::size_t most_bytes_;
  const std::uint64_t requests_per_look_;
  const Retired retired_;
  std::atomic<bool> abandoned_{false};
  int ending_threads_ = 0;  // that give back their caches now; guarded by the list of allocators

  // Guards what follows; taken before the caches' locks.
  mutable Ranked<std::mutex, LockRank::kCaches> mutex_;
  std::vector<std::unique_ptr<ThreadCache>> caches_;
  // What threads without a cache have counted: by place, and by first pool / kPoolsPerStream.
  std::span<Tally> ended_;
  std::vector<StreamTally> ended_streams_;
  std::atomic<std::size_t> streams_with_room_ = 0;  // its size
  PeakBook book_;
  std::int64_t& peak_live_bytes_;  // of all places together
  // With room for one of each thread.
  std::vector<OwnerLock*> taken_;  // by Frozen: all but its thread's own, which is not inside
  RoomShares shares_;              // of add_up(): of caches_
  std::vector<Tally*> tallies_;    // of add_up_place()
};

}  // namespace uvm
