// What the allocator counts under its lock: pages of pools, blocks behind fences, calls of the
// driver and whatever else has a figure in Statistics; what threads count of their blocks
// (ThreadCaches) is added when it is asked for. Whoever listens to the device facade's memory
// hears of the same events.
//
// Guarded by the allocator's lock, but for place_of() and check_device().
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <uvmalloc/allocator/cache/thread_caches.hpp>
#include <uvmalloc/allocator/heap/block_pools.hpp>
#include <uvmalloc/allocator/memory_observer.hpp>
#include <uvmalloc/allocator/statistics.hpp>

namespace uvm {

class StatisticsBook {
 public:
  // `totals` outlives the book.
  StatisticsBook(std::size_t devices, std::size_t budget_bytes, Totals& totals);

  // Where ThreadCaches count for that facade and device.
  std::size_t place_of(Facade facade, int device) const {
    return static_cast<std::size_t>(facade) * devices_ + static_cast<std::size_t>(device);
  }
  // std::out_of_range where there is no such device.
  void check_device(int device) const;

  // Figures without a rule of their own, for who has the lock to count in.
  Totals& figures() { return totals_; }
  void set_budget(std::size_t budget_bytes) { figures_.budget_bytes = budget_bytes; }
  ServiceStatistics& service_of(Facade facade, int device) {
    return figures_.service[static_cast<std::size_t>(facade)][static_cast<std::size_t>(device)];
  }

  // The service figures of all facades and devices.
  auto& services() { return figures_.service; }

  void set_observer(MemoryObserver* observer) { observer_ = observer; }

  // Before a pool gets pages: counting them needs no memory then.
  void prepare(const Pool& pool) { private_pool(pool.key); }
  // Whole pages that a pool has got, or lost.
  void pages_added(const Pool& pool, void* base, std::size_t size_bytes);
  void pages_removed(const Pool& pool, void* base, std::size_t size_bytes);
  // A part of such pages went to an arena of small objects, or came back.
  void small_segment_taken(const Pool& home, std::size_t size_bytes);
  void small_segment_returned(const Pool& home, std::size_t size_bytes);
  std::size_t reserved_bytes(Facade facade, int device) const;

  // A block of that pool waits for its fences from now on, or does so no longer.
  void fence_begins(const Block& block, const Pool& pool);
  void fence_ends(const Block& block, const Pool& pool);
  // For the observer: a block of that pool whose free did not come at once.
  void free_completed(const Block& block, const Pool& pool);

  void reset_peaks(Facade facade, int device);
  void reset_totals(Facade facade, int device);

  // All there is, with the caches frozen and added up.
  Statistics all(ThreadCaches& caches, const BlockPools& pools, const SpanStore& spans) const;

 private:
  using Classes = std::array<ClassStatistics, kSizeClasses + 1>;
  Classes& classes_of(const StreamKey& key) {
    return figures_
        .classes[static_cast<std::size_t>(key.facade)][static_cast<std::size_t>(key.device)];
  }
  PrivatePoolStatistics* private_pool(const StreamKey& key);
  void count_pages(const Pool& pool, std::size_t size_bytes, void (Gauge::*count)(std::uint64_t));
  void count_fenced(const Block& block, const Pool& pool, void (Gauge::*count)(std::uint64_t));
  void reset_gauges(Facade facade, int device, void (Gauge::*reset)());
  void add_classes(Facade facade, int device, ThreadCaches& caches, Statistics* out) const;
  static void add_streams(const ThreadCaches& caches, const BlockPools& pools, Statistics* out);

  const std::size_t devices_;
  Totals& totals_;
  Statistics figures_;  // but for the totals
  MemoryObserver* observer_ = nullptr;
};

}  // namespace uvm
