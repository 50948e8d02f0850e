#include "allocator/cache/thread_caches.hpp"

#include <pthread.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <new>
#include <utility>

namespace uvm {
namespace {

std::uint64_t next_serial() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

// Lists the existing allocators, by serial. An ending thread looks its allocators up here, because
// the thread may outlive them. Never destroyed: threads may end after static objects are destroyed.
struct AllocatorRegistry {
  Ranked<std::mutex, LockRank::kThreadEnds> mutex;
  std::map<std::uint64_t, ThreadCaches*> by_serial;
  std::condition_variable_any left;  // notified when an ending thread is done with an allocator
};
AllocatorRegistry& registry() {
  static auto* const kRegistry = new AllocatorRegistry;
  return *kRegistry;
}

}  // namespace

// A thread's caches, by the allocator's serial. The ending thread returns the caches.
struct ThreadExitHook {
  std::vector<std::pair<std::uint64_t, ThreadCache*>> caches;
  pid_t process = 0;  // the process that made the caches

  ThreadExitHook() = default;
  ~ThreadExitHook() { run(); }
  ThreadExitHook(const ThreadExitHook&) = delete;
  ThreadExitHook& operator=(const ThreadExitHook&) = delete;

  void run() noexcept {
    ThreadCaches::slot_ = {};
    const auto left = std::exchange(caches, {});
    // In a forked child the inherited blocks belong to the parent, and threads that exist only in
    // the parent may hold locks.
    if (process != getpid()) return;
    for (auto [serial, cache] : left) {
      ThreadCaches* const of = enter(serial);
      if (of == nullptr) continue;
      of->retire(cache);
      leave(of);
    }
  }

 private:
  // Keeps the allocator alive until leave(). Returns nullptr if the allocator is already destroyed.
  static ThreadCaches* enter(std::uint64_t serial) {
    const RankedGuard lock(registry().mutex);
    const auto found = registry().by_serial.find(serial);
    if (found == registry().by_serial.end()) return nullptr;
    ++found->second->ending_threads_;
    return found->second;
  }
  static void leave(ThreadCaches* of) {
    const RankedGuard lock(registry().mutex);
    --of->ending_threads_;
    registry().left.notify_all();
  }
};

namespace {
// Set at this thread's end, when ThreadExitHook is destroyed or LateExitHook runs the hook. A plain
// bool stays readable after the thread's objects are destroyed.
constinit thread_local bool thread_is_exiting = false;

ThreadExitHook& thread_end() {
  struct Marked : ThreadExitHook {
    ~Marked() { thread_is_exiting = true; }
  };
  static thread_local Marked end;
  return end;
}

// Destructors of thread-specific data run after those of thread-local objects. If such a destructor
// is the first in its thread to use an allocator, the thread's ThreadExitHook is made too late to
// be destroyed. Then pthread passes it to this key's destructor, in its next round of destructors.
class LateExitHook {
 public:
  LateExitHook() : exists_(pthread_key_create(&key_, run) == 0) {}
  ~LateExitHook() {
    if (exists_) pthread_key_delete(key_);
  }
  LateExitHook(const LateExitHook&) = delete;
  LateExitHook& operator=(const LateExitHook&) = delete;

  void expect(ThreadExitHook* end) noexcept {
    if (exists_) pthread_setspecific(key_, end);
  }

 private:
  static void run(void* end) noexcept {
    if (std::exchange(thread_is_exiting, true)) return;
    static_cast<ThreadExitHook*>(end)->run();
  }

  pthread_key_t key_ = 0;
  const bool exists_;
};
}  // namespace

constinit thread_local ThreadCaches::Slot ThreadCaches::slot_;

ThreadCaches::ThreadCaches(FigureStore& figures, std::size_t most_bytes,
                           std::uint64_t requests_per_look, ReturnsBlocks& returns)
    : serial_(next_serial()),
      figures_(figures),
      counters_(figures.counters()),
      most_bytes_(most_bytes),
      requests_per_look_(requests_per_look),
      returns_(returns),
      ended_(figures.ended()),
      peaks_(figures.peaks()),
      peak_live_bytes_(figures.peak_live_bytes()) {
  AsymmetricLock::prepare();
  const RankedGuard lock(registry().mutex);
  registry().by_serial[serial_] = this;
}

ThreadCaches::~ThreadCaches() {
  close();
}

void ThreadCaches::close() noexcept {
  // In a forked child no thread returns its cache, and a thread of the parent may hold the mutex.
  if (abandoned_) return;
  std::unique_lock lock(registry().mutex);
  registry().by_serial.erase(serial_);
  registry().left.wait(lock, [&] { return ending_threads_ == 0; });
}

ThreadCache* ThreadCaches::local_slow() noexcept {
  if (thread_is_exiting || abandoned_.load(std::memory_order_relaxed)) return nullptr;
  auto& ended = thread_end();
  auto known = std::find_if(ended.caches.begin(), ended.caches.end(),
                            [&](const auto& entry) { return entry.first == serial_; });
  ThreadCache* cache = nullptr;
  if (known != ended.caches.end()) {
    cache = known->second;
  } else {
    try {
      cache = add_cache();
    } catch (const std::bad_alloc&) {
      return nullptr;  // the next call tries again
    }
  }
  slot_ = {serial_, cache};
  return cache;
}

// Allocates all memory before the first change, so that a failed allocation changes nothing.
ThreadCache* ThreadCaches::add_cache() {
  auto& ended = thread_end();
  auto cache =
      std::make_unique<ThreadCache>(figures_.take_thread_counts(), most_bytes_, requests_per_look_);
  ThreadCache* made = cache.get();
  if (ended.process != getpid()) {
    ended.caches.clear();
    ended.process = getpid();
  }
  ended.caches.reserve(ended.caches.size() + 1);
  {
    const RankedGuard lock(mutex_);
    if (caches_.size() == caches_.capacity()) caches_.reserve(2 * caches_.size() + 1);
    taken_.reserve(caches_.capacity());
    thread_counts_.reserve(caches_.capacity());
    shares_.clear();
    for (std::size_t thread = 0; thread <= caches_.size(); ++thread) shares_.add(false, false);
    caches_.push_back(std::move(cache));
  }
  ended.caches.emplace_back(serial_, made);
  static LateExitHook late_end;
  late_end.expect(&ended);
  return made;
}

void ThreadCaches::retire(ThreadCache* cache) noexcept {
  BlockChain blocks;
  std::vector<StreamIndex> streams;
  {
    const RankedGuard lock(mutex_);
    if (abandoned_) return;
    take_out(cache, &blocks, &streams);
  }
  {
    // Updates the peaks: this thread's last counts may have raised a sum above its peak.
    const StopTheWorld stopped(*this);
    aggregate();
  }
  returns_.end_thread(std::move(blocks), streams);
}

// Flushes the cache, moves its counts to those of ended threads, and removes the cache from
// caches_. If there is no memory to list the cache's streams, only flushes the cache.
void ThreadCaches::take_out(ThreadCache* cache, BlockChain* blocks,
                            std::vector<StreamIndex>* streams) noexcept {
  bool has_all = true;
  try {
    cache->each_stream([&](const StreamCache& of) { streams->push_back(of.stream()); });
  } catch (const std::bad_alloc&) {
    has_all = false;
  }
  cache->each_stream([&](StreamCache& of) { of.flush_all(blocks); });
  if (!has_all) return;
  for (std::size_t counter = 0; counter < counters_; ++counter)
    ended_[counter].absorb(cache->counts(counter));
  cache->each_stream(
      [&](const StreamCache& of) { ended_streams_[position(of.stream())].absorb(of.counts()); });
  std::erase_if(caches_, [&](const auto& other) { return other.get() == cache; });
}

ThreadCaches::StopTheWorld::StopTheWorld(ThreadCaches& caches)
    : caches_(caches), lock_(caches.mutex_) {
  // A forked child has no other threads, but their locks may still look held: at the fork an owner
  // may have been about to notice that another thread had taken the lock.
  if (caches.abandoned_) return;
  const ThreadCache* own = slot_.serial == caches.serial_ ? slot_.cache : nullptr;
  for (const auto& cache : caches_.caches_) {
    if (cache.get() != own) caches.taken_.push_back(&cache->lock);
  }
  AsymmetricLock::lock_all(caches.taken_);
}

ThreadCaches::StopTheWorld::~StopTheWorld() {
  AsymmetricLock::unlock_all(caches_.taken_);
  caches_.taken_.clear();
}

void ThreadCaches::flush(StreamIndex stream, CachedKind kind, BlockChain* out) noexcept {
  each_of(stream, [&](StreamCache& of) { of.flush(kind, out); });
}

void ThreadCaches::close(StreamIndex stream, BlockChain* out) noexcept {
  for (const auto& cache : caches_) cache->close(stream, out);
}

void ThreadCaches::rename(StreamIndex stream, const StreamKey& key) {
  for (const auto& cache : caches_) cache->rename(stream, key);
}

void ThreadCaches::drop(StreamIndex stream) noexcept {
  const std::size_t index = position(stream);
  StreamCounters counts;
  each_of(stream, [&](const StreamCache& of) { counts.absorb(of.counts()); });
  for (const auto& cache : caches_) cache->drop(stream);
  if (index < ended_streams_.size()) ended_streams_[index].append(counts);
}

void ThreadCaches::set_may_cache_large(StreamIndex stream) {
  const StopTheWorld stopped(*this);
  each_of(stream, [](StreamCache& of) { of.set_may_cache_large(true); });
}

void ThreadCaches::stop_caching_large(StreamIndex stream, BlockChain* out) {
  const StopTheWorld stopped(*this);
  each_of(stream, [&](StreamCache& of) {
    of.set_may_cache_large(false);
    of.flush(CachedKind::kLarge, out);
  });
}

void ThreadCaches::flush_all(BlockChain* out) noexcept {
  for (const auto& cache : caches_) {
    cache->each_stream([&](StreamCache& of) { of.flush_all(out); });
  }
}

void ThreadCaches::aggregate() {
  find_shares();
  for (std::size_t counter = 0; counter < counters_; ++counter) aggregate_counter(counter);
  aggregate_live();
}

void ThreadCaches::aggregate(std::size_t counter) {
  find_shares();
  aggregate_counter(counter);
  aggregate_live();
}

void ThreadCaches::find_shares() {
  const ThreadCache* own = slot_.serial == serial_ ? slot_.cache : nullptr;
  shares_.clear();
  for (const auto& cache : caches_) shares_.add(cache->take_has_allocated(), cache.get() == own);
}

void ThreadCaches::aggregate_counter(std::size_t counter) {
  thread_counts_.clear();
  for (const auto& cache : caches_) thread_counts_.push_back(&cache->counts(counter));
  peaks_.aggregate(counter, thread_counts_, ended_[counter], shares_);
}

void ThreadCaches::aggregate_live() {
  std::int64_t live_bytes = 0;
  for (std::size_t counter = 0; counter < counters_; ++counter) {
    live_bytes += ended_[counter].live(ThreadCounters::kAll).bytes;
    for (const auto& cache : caches_)
      live_bytes += cache->counts(counter).live(ThreadCounters::kAll).bytes;
  }
  peak_live_bytes_ = std::max(peak_live_bytes_, live_bytes);
  const std::int64_t room = peak_live_bytes_ - live_bytes;
  for (std::size_t thread = 0; thread < caches_.size(); ++thread) {
    caches_[thread]->allow(shares_.part(thread, room));
  }
}

ThreadCounters ThreadCaches::sum(std::size_t counter) const {
  ThreadCounters sum = ended_[counter];
  for (const auto& cache : caches_) sum.absorb(cache->counts(counter));
  return sum;
}

std::size_t ThreadCaches::cached_bytes() const {
  std::size_t bytes = 0;
  for (const auto& cache : caches_) bytes += cache->cached_bytes();
  return bytes;
}

void ThreadCaches::make_more_room(StreamIndex stream) {
  const RankedGuard lock(mutex_);
  const std::size_t wanted = position(stream) + 1;
  if (ended_streams_.size() < wanted) ended_streams_.resize(wanted);
  streams_with_room_.store(ended_streams_.size(), std::memory_order_release);
}

StreamCounters ThreadCaches::sum_of_stream(StreamIndex stream) const {
  std::size_t index = position(stream);
  StreamCounters sum;
  if (index < ended_streams_.size()) sum = ended_streams_[index];
  each_of(stream, [&](const StreamCache& of) { sum.absorb(of.counts()); });
  return sum;
}

std::size_t ThreadCaches::bytes() const {
  std::size_t bytes = 0;
  for (const auto& cache : caches_) bytes += cache->bytes();
  return bytes;
}

void ThreadCaches::lock_list_for_fork() {
  registry().mutex.lock();
}
void ThreadCaches::unlock_list_after_fork() {
  registry().mutex.unlock();
}

void ThreadCaches::abandon() noexcept {
  abandoned_ = true;
  slot_ = {};
  // This thread must take no locks when it ends, because other threads may have held these locks at
  // the fork.
  if (!thread_is_exiting) thread_end().caches.clear();
}

}  // namespace uvm
