#include "allocator/statistics/heap_statistics.hpp"

#include <algorithm>
#include <stdexcept>

#include <fmt/format.h>

#include "allocator/policy/allocation_policy.hpp"

namespace uvm {
namespace {

constexpr auto kSmallIndex = static_cast<std::size_t>(SizeClass::kSmall);
constexpr auto kLargeIndex = static_cast<std::size_t>(SizeClass::kLarge);

Gauge gauge(std::int64_t current, std::int64_t peak, std::int64_t increased,
            std::int64_t decreased) {
  return {static_cast<std::uint64_t>(current), static_cast<std::uint64_t>(peak),
          static_cast<std::uint64_t>(increased), static_cast<std::uint64_t>(decreased)};
}

// Returns the gauge of live blocks and blocks behind fences together. Its peak is exact if no block
// has waited for a fence; otherwise it is an upper bound.
Gauge with_fenced(const Gauge& live, const Gauge& fenced) {
  return {live.current + fenced.current, live.peak + fenced.peak, live.increased,
          live.decreased + fenced.decreased - fenced.increased};
}

}  // namespace

const char* to_string(CopyReason reason) {
  switch (reason) {
    case CopyReason::kSmallBlock:
      return "small_block";
    case CopyReason::kForeign:
      return "foreign_memory";
    case CopyReason::kExported:
      return "exported_pointer";
    case CopyReason::kPartialStorage:
      return "partial_storage";
    case CopyReason::kLayout:
      return "layout";
    case CopyReason::kConversion:
      return "conversion";
    case CopyReason::kCapturing:
      return "capturing";
    case CopyReason::kAliased:
      return "aliased";
    case CopyReason::kMayBeRead:
      return "may_be_read";
    case CopyReason::kMode:
      return "mode";
  }
  return "unknown";
}

HeapStatistics::HeapStatistics(std::size_t devices, std::size_t budget_bytes, Totals& totals)
    : devices_(devices), totals_(totals) {
  figures_.budget_bytes = budget_bytes;
  for (auto& facade : figures_.classes) facade.resize(devices);
  for (auto& facade : figures_.service) facade.resize(devices);
}

void HeapStatistics::check_device(int device) const {
  if (device >= 0 && static_cast<std::size_t>(device) < devices_) return;
  throw std::out_of_range(fmt::format("device {} does not exist; there are {}", device, devices_));
}

// Returns the figures of the private pool; makes them if needed. Returns nullptr if the pool is not
// private.
PrivatePoolStatistics* HeapStatistics::private_pool(const StreamKey& key) {
  if (key.program_pool() == 0 || key.private_pool == StreamKey::kForgotten) return nullptr;
  auto& all = figures_.private_pools;
  auto found = std::find_if(all.begin(), all.end(), [&](const PrivatePoolStatistics& other) {
    return other.device == key.device && other.id == key.private_pool;
  });
  if (found == all.end()) found = all.insert(all.end(), {key.device, key.private_pool, {}});
  return &*found;
}

// Counts all pages as pages of large blocks at first. small_segment_taken() then recounts the
// segments of arenas as pages of small blocks.
void HeapStatistics::count_pages(const Pool& pool, std::size_t size_bytes,
                                 void (Gauge::*count)(std::uint64_t)) {
  Classes& classes = classes_of(pool.key);
  PrivatePoolStatistics* own = private_pool(pool.key);
  for (std::size_t of : {kLargeIndex, kSizeClasses}) {
    (classes[of].segments.*count)(size_bytes >> kPageShift);
    (classes[of].reserved_bytes.*count)(size_bytes);
    if (own != nullptr) (own->reserved_bytes[of].*count)(size_bytes);
  }
  (totals_.pool_bytes[static_cast<std::size_t>(pool.key.facade)].*count)(size_bytes);
}

void HeapStatistics::pages_added(const Pool& pool, void* base, std::size_t size_bytes) {
  count_pages(pool, size_bytes, &Gauge::increase);
  if (observer_ != nullptr && pool.key.facade == Facade::kDevice) {
    observer_->pages_added(pool.key, base, size_bytes);
  }
}

void HeapStatistics::pages_removed(const Pool& pool, void* base, std::size_t size_bytes) {
  count_pages(pool, size_bytes, &Gauge::decrease);
  if (observer_ != nullptr && pool.key.facade == Facade::kDevice) {
    observer_->pages_removed(pool.key, base, size_bytes);
  }
}

void HeapStatistics::small_segment_taken(const Pool& owning_pool, std::size_t size_bytes) {
  Classes& classes = classes_of(owning_pool.key);
  classes[kLargeIndex].reserved_bytes.decrease(size_bytes);
  classes[kSmallIndex].reserved_bytes.increase(size_bytes);
}

void HeapStatistics::small_segment_returned(const Pool& owning_pool, std::size_t size_bytes) {
  Classes& classes = classes_of(owning_pool.key);
  classes[kSmallIndex].reserved_bytes.decrease(size_bytes);
  classes[kLargeIndex].reserved_bytes.increase(size_bytes);
}

std::size_t HeapStatistics::reserved_bytes(Facade facade, int device) const {
  return figures_
      .classes[static_cast<std::size_t>(facade)][static_cast<std::size_t>(device)][kSizeClasses]
      .reserved_bytes.current;
}

// Counts blocks behind fences in the gauges of active blocks. all() adds the live blocks.
void HeapStatistics::count_fenced(const Block& block, const Pool& pool,
                                  void (Gauge::*count)(std::uint64_t)) {
  Classes& classes = classes_of(pool.key);
  for (std::size_t of :
       {static_cast<std::size_t>(size_class_of(block.size_bytes())), kSizeClasses}) {
    (classes[of].active_blocks.*count)(1);
    (classes[of].active_bytes.*count)(block.size_bytes());
    (classes[of].active_requested_bytes.*count)(block.requested_bytes());
  }
}

void HeapStatistics::fence_begins(const Block& block, const Pool& pool) {
  count_fenced(block, pool, &Gauge::increase);
}

void HeapStatistics::fence_ends(const Block& block, const Pool& pool) {
  count_fenced(block, pool, &Gauge::decrease);
}

void HeapStatistics::free_completed(const Block& block, const Pool& pool) {
  if (observer_ != nullptr && pool.key.facade == Facade::kDevice) {
    observer_->free_completed(pool.key, block.address(), block.requested_bytes());
  }
}

void HeapStatistics::reset_gauges(Facade facade, int device, void (Gauge::*reset)()) {
  for (auto& figures : classes_of({facade, device})) {
    figures.each_gauge([&](Gauge& gauge) { (gauge.*reset)(); });
  }
  if (facade != Facade::kDevice) return;
  for (PrivatePoolStatistics& pool : figures_.private_pools) {
    if (pool.device != device) continue;
    for (Gauge& gauge : pool.reserved_bytes) (gauge.*reset)();
  }
  std::erase_if(figures_.private_pools, [](const auto& pool) { return pool.is_empty(); });
}

void HeapStatistics::limit_ended_pools(const HasEnded& has_ended) noexcept {
  auto& all = figures_.private_pools;
  auto can_go = [&](const PrivatePoolStatistics& pool) {
    return pool.reserved_bytes[kSizeClasses].current == 0 && has_ended(pool.device, pool.id);
  };
  const auto ended = static_cast<std::size_t>(std::count_if(all.begin(), all.end(), can_go));
  std::size_t surplus = ended - std::min(ended, policy::kListedEndedPools);
  std::erase_if(all, [&](const PrivatePoolStatistics& pool) {
    if (surplus == 0 || !can_go(pool)) return false;
    --surplus;
    return true;
  });
}

void HeapStatistics::reset_peaks(Facade facade, int device) {
  reset_gauges(facade, device, &Gauge::reset_peak);
}

void HeapStatistics::reset_totals(Facade facade, int device) {
  reset_gauges(facade, device, &Gauge::reset_totals);
  service_of(facade, device) = {};
}

void HeapStatistics::add_classes(Facade facade, int device, ThreadCaches& caches,
                                 Statistics* out) const {
  const auto at = static_cast<std::size_t>(facade);
  const std::size_t counter = counter_index(facade, device);
  const PeakTracker& peaks = caches.peaks();
  const ThreadCounters sum = caches.sum(counter);
  for (std::size_t of = 0; of <= ThreadCounters::kAll; ++of) {
    ClassStatistics& figures = out->classes[at][static_cast<std::size_t>(device)][of];
    const Amounts now = sum.live(of);
    const Amounts& peak = peaks.peak(counter, of);
    const Amounts up = peaks.increased(counter, of, sum);
    const Amounts down = peaks.decreased(counter, of, sum);
    figures.allocations = gauge(now.blocks, peak.blocks, up.blocks, down.blocks);
    figures.allocated_bytes = gauge(now.bytes, peak.bytes, up.bytes, down.bytes);
    figures.requested_bytes =
        gauge(now.requested_bytes, peak.requested_bytes, up.requested_bytes, down.requested_bytes);
    figures.active_blocks = with_fenced(figures.allocations, figures.active_blocks);
    figures.active_bytes = with_fenced(figures.allocated_bytes, figures.active_bytes);
    figures.active_requested_bytes =
        with_fenced(figures.requested_bytes, figures.active_requested_bytes);
    if (of != ThreadCounters::kAll) {
      figures.cache_hits = sum.hits(of);
      out->cache_hits[at] += sum.hits(of);
    }
  }
  const Amounts total = sum.total(ThreadCounters::kAll);
  const Gauge& bytes =
      out->classes[at][static_cast<std::size_t>(device)][kSizeClasses].allocated_bytes;
  Gauge& of_facade = out->facade_bytes[at];
  out->allocations[at] += static_cast<std::uint64_t>(total.blocks);
  of_facade.current += bytes.current;
  of_facade.peak += bytes.peak;
  of_facade.increased += static_cast<std::uint64_t>(total.bytes);
  of_facade.decreased += static_cast<std::uint64_t>((total - sum.live(ThreadCounters::kAll)).bytes);
}

void HeapStatistics::add_streams(const ThreadCaches& caches, const BlockPools& pools,
                                 Statistics* out) {
  for (StreamIndex of{}; of < pools.table().streams_end(); ++of) {
    const StreamKey& key = pools.at(of).key;
    const StreamCounters counts = caches.sum_of_stream(of);
    StreamStatistics stream{key.facade,
                            key.device,
                            address_of(key.stream),
                            counts.live_bytes,
                            counts.peak_bytes,
                            counts.blocks,
                            counts.bytes,
                            0,
                            0};
    for (const auto& pool : pools.table().pools_of(of)) {
      for (const FreeIndex* index : {&pool->own, &pool->displaced_here}) {
        stream.free_bytes += index->free_bytes();
        if (const PageBlock* largest = index->largest()) {
          stream.largest_free_bytes =
              std::max<std::uint64_t>(stream.largest_free_bytes, largest->size_bytes());
        }
      }
    }
    out->free_bytes += stream.free_bytes;
    out->largest_free_bytes = std::max(out->largest_free_bytes, stream.largest_free_bytes);
    out->streams.push_back(stream);
  }
}

Statistics HeapStatistics::all(ThreadCaches& caches, const BlockPools& pools,
                               const SpanStore& spans) const {
  Statistics out = figures_;
  static_cast<Totals&>(out) = totals_;
  for (Facade facade : {Facade::kHost, Facade::kPinned, Facade::kDevice}) {
    for (std::size_t device = 0; device < devices_; ++device) {
      add_classes(facade, static_cast<int>(device), caches, &out);
    }
    const Gauge& bytes = out.facade_bytes[static_cast<std::size_t>(facade)];
    out.live_bytes.current += bytes.current;
    out.live_bytes.increased += bytes.increased;
    out.live_bytes.decreased += bytes.decreased;
  }
  out.live_bytes.peak = static_cast<std::uint64_t>(caches.peak_live_bytes());
  out.thread_cached_bytes = caches.cached_bytes();
  add_streams(caches, pools, &out);
  out.touched_not_used_bytes = pools.free_page_bytes() + spans.touched_free_bytes();
  out.metadata_bytes = pools.metadata_bytes() + caches.bytes();
  return out;
}

}  // namespace uvm
