// The figures that are counted under the state lock: pages of pools, blocks behind fences, driver
// calls and the rest of Statistics. all() adds the counts of threads (ThreadCaches). Also calls
// the observer of device memory.
//
// Guarded by the state lock, except counter_index() and check_device().
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>

#include <uvmalloc/statistics.hpp>
#include "allocator/cache/thread_caches.hpp"
#include "allocator/heap/block_pools.hpp"
#include "allocator/memory_observer.hpp"

namespace uvm {

class HeapStatistics {
 public:
  // `totals` must outlive this object.
  HeapStatistics(std::size_t devices, std::size_t budget_bytes, Totals& totals);

  // Returns the index, among the counters of ThreadCaches, of that memory kind and device.
  std::size_t counter_index(Facade facade, int device) const {
    return static_cast<std::size_t>(facade) * devices_ + static_cast<std::size_t>(device);
  }
  // Throws std::out_of_range if the device does not exist.
  void check_device(int device) const;

  // Figures that callers change directly.
  Totals& figures() { return totals_; }
  void set_budget(std::size_t budget_bytes) { figures_.budget_bytes = budget_bytes; }
  ServiceStatistics& service_of(Facade facade, int device) {
    return figures_.service[static_cast<std::size_t>(facade)][static_cast<std::size_t>(device)];
  }

  // The service figures of all memory kinds and devices.
  auto& services() { return figures_.service; }

  void set_observer(MemoryObserver* observer) { observer_ = observer; }

  // Called before a pool gets pages, so that counting the pages allocates nothing.
  void prepare(const Pool& pool) { private_pool(pool.key); }
  // Called when a pool gets whole pages, or loses them.
  void pages_added(const Pool& pool, void* base, std::size_t size_bytes);
  void pages_removed(const Pool& pool, void* base, std::size_t size_bytes);
  // Called when an arena of small objects takes a part of such pages, or returns it.
  void small_segment_taken(const Pool& owning_pool, std::size_t size_bytes);
  void small_segment_returned(const Pool& owning_pool, std::size_t size_bytes);
  std::size_t reserved_bytes(Facade facade, int device) const;

  // Called when a block of that pool begins to wait for its fences, and when this wait ends.
  void fence_begins(const Block& block, const Pool& pool);
  void fence_ends(const Block& block, const Pool& pool);
  // Notifies the observer that a block of that pool is free after it had to wait.
  void free_completed(const Block& block, const Pool& pool);

  // Forgets the oldest ended private pools, so that only as many remain as statistics list.
  using HasEnded = std::function<bool(int device, std::uint64_t id)>;
  void limit_ended_pools(const HasEnded& has_ended) noexcept;

  void reset_peaks(Facade facade, int device);
  void reset_totals(Facade facade, int device);

  // Returns all figures. Call ThreadCaches::aggregate() before.
  Statistics all(ThreadCaches& caches, const BlockPools& pools, const SpanStore& spans) const
      UVM_REQUIRES(caches);

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
  void add_classes(Facade facade, int device, ThreadCaches& caches, Statistics* out) const
      UVM_REQUIRES(caches);
  static void add_streams(const ThreadCaches& caches, const BlockPools& pools, Statistics* out)
      UVM_REQUIRES(caches);

  const std::size_t devices_;
  Totals& totals_;
  Statistics figures_;  // all figures except the totals
  MemoryObserver* observer_ = nullptr;
};

}  // namespace uvm
