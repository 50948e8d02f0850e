#include <uvmalloc/allocator/caching_managed_allocator.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <set>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include <uvmalloc/allocator/machine_memory.hpp>
#include <uvmalloc/allocator/poison.hpp>
#include <uvmalloc/runtime/log.hpp>

namespace uvm {
namespace {

// Above this no driver has address space; refused before rounding can overflow.
constexpr std::size_t kLargestRequest = RealStorage::kMostSizeBytes / kPageBytes * kPageBytes;

// Free blocks of two spans are never joined, and spans are virtual until touched, so they are
// large: where dead pages can be given back, one holds all that may be used; where only a whole
// span can be, it has room for some more requests like the one it is made for.
constexpr std::size_t kMostSpanBytes = std::size_t{1} << 40;
constexpr std::size_t kLeastSpanBytes = 32u << 20;
constexpr std::size_t kRequestsPerSpan = 8;

Place wanted_place(Facade facade, int device) {
  return facade == Facade::kDevice ? Place::device(device) : Place::host();
}

// Small objects are fetched from an arena in batches of about so many bytes, at most so many.
constexpr std::size_t kRefillBytes = 16u << 10;
constexpr std::size_t kRefillBlocks = 16;

// What a thread may keep for a stream: so much of the budget, since others get it back before new
// pages are touched.
constexpr std::size_t kThreadCacheParts = 8;
constexpr std::size_t kLeastThreadCacheBytes = 64u << 20;

std::size_t thread_cache_bytes(const Configuration& configuration, std::size_t budget_bytes) {
  return configuration.thread_cache_bytes.value_or(
      std::max(kLeastThreadCacheBytes, budget_bytes / kThreadCacheParts));
}

std::vector<DeviceDescription> describe_devices(const DeviceRuntime& runtime) {
  std::vector<DeviceDescription> devices(static_cast<std::size_t>(runtime.device_count()));
  for (int device = 0; device < runtime.device_count(); ++device) {
    auto& description = devices[static_cast<std::size_t>(device)];
    if (RuntimeStatus status = runtime.describe(device, &description); !status.ok()) {
      throw std::runtime_error(fmt::format("device {} cannot be asked: {}", device, status.text()));
    }
    if (!description.capabilities.concurrent_managed_access) {
      throw std::runtime_error(
          fmt::format("device {} ({}) cannot use managed memory concurrently with the host", device,
                      description.name));
    }
  }
  if (devices.empty()) throw std::runtime_error("there is no device");
  return devices;
}

// Requests for large blocks, of one pool, after which a thread gives back the blocks of pages that
// it keeps. Those that it uses come back to it; the others would stand between larger ones for
// good.
constexpr std::uint64_t kRequestsPerTidying = 16;

// Whether a wait has ended as it should. On a device that cannot be used any more nothing runs.
bool is_through(const RuntimeStatus& wait) {
  return wait.ok() || wait.error == RuntimeError::kNotUsable;
}

void log_lost_block() {
  log_line(LogLevel::kError, "a block that was freed is lost: there is no memory to note it");
}

constexpr RuntimeStatus kOverBudget{RuntimeError::kOutOfMemory, 0, "the budget is used up",
                                    "budget"};

std::size_t class_index_of(const Pool& pool) {
  const bool small = pool.pool_class == PoolClass::kSmall || pool.pool_class == PoolClass::kMedium;
  return static_cast<std::size_t>(small ? SizeClass::kSmall : SizeClass::kLarge);
}

Gauge gauge(std::int64_t current, std::int64_t peak, std::int64_t increased,
            std::int64_t decreased) {
  return {static_cast<std::uint64_t>(current), static_cast<std::uint64_t>(peak),
          static_cast<std::uint64_t>(increased), static_cast<std::uint64_t>(decreased)};
}

// What callers have and what waits behind fences. The peak is exact where nothing waited; it is at
// most the sum of both peaks.
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
    case CopyReason::kMode:
      return "mode";
  }
  return "unknown";
}

// The arena calls it with arena_mutex_ and its own locks held.
class CachingManagedAllocator::SmallPages final : public ExtentSource {
 public:
  SmallPages(CachingManagedAllocator& owner, PoolIndex pool) : owner_(owner), pool_(pool) {}

  void* take(std::size_t size_bytes) noexcept override {
    std::lock_guard lock(owner_.lock_);
    try {
      return take_pages(size_bytes);
    } catch (const std::bad_alloc&) {
      return nullptr;
    }
  }

  // Another stream may get the pages: they wait for release_pages(), which waits for the device.
  void give_back(void* run, std::size_t size_bytes) noexcept override {
    if (closed_) return;
    std::lock_guard lock(owner_.lock_);
    for (std::size_t offset = 0; offset < size_bytes; offset += kPageBytes) {
      owner_.leaving_pages_.push_back(
          owner_.pools_.remove_small_page(static_cast<char*>(run) + offset));
    }
    const Pool& pool = owner_.pools_.at(pool_);
    if (pool.key.facade == Facade::kDevice) owner_.leaving_page_users_.insert(pool.key.device);
    owner_.remove_from_pool(pool, run, size_bytes);
  }

  // The records go with the allocator.
  void close() { closed_ = true; }

  bool may_use_any_facade = false;  // guarded by arena_mutex_

 private:
  // With the allocator's lock. std::bad_alloc where there is no memory for records.
  void* take_pages(std::size_t size_bytes) {
    Pool& pool = owner_.pools_.at(pool_);
    SpanStore::Run run =
        owner_.spans_.find(pool.key.facade, pool.key.device, size_bytes, may_use_any_facade);
    if (run.span == nullptr ||
        !owner_.is_within_limits(pool.key, run.untouched_bytes, size_bytes)) {
      return nullptr;
    }
    owner_.spans_.take(run, size_bytes);
    owner_.statistics_.touched_bytes.increase(run.untouched_bytes);
    std::size_t added_bytes = 0;
    try {
      for (; added_bytes < size_bytes; added_bytes += kPageBytes) {
        owner_.pools_.add_small_page(run.span, run.base() + added_bytes, pool, run.span->placement);
      }
    } catch (const std::bad_alloc&) {
      while (added_bytes != 0) {
        added_bytes -= kPageBytes;
        owner_.pools_.remove_small_page(run.base() + added_bytes);
      }
      owner_.spans_.give_back(run.span, run.base(), size_bytes);
      throw;
    }
    ++owner_.small_takes_;
    owner_.add_to_pool(pool, run.base(), size_bytes);
    if (pool.key.facade != Facade::kDevice) return run.base();
    try {
      HintPlan plan = owner_.planner_.plan_use(run.base(), size_bytes,
                                               wanted_place(pool.key.facade, pool.key.device));
      owner_.small_plan_.insert(owner_.small_plan_.end(), plan.begin(), plan.end());
    } catch (const std::bad_alloc&) {
      // The pages are there without the hint.
    }
    return run.base();
  }

  CachingManagedAllocator& owner_;
  const PoolIndex pool_;
  bool closed_ = false;
};

CachingManagedAllocator::CachingManagedAllocator(std::unique_ptr<DeviceRuntime> runtime,
                                                 const Configuration& configuration)
    : configuration_(configuration),
      runtime_(std::move(runtime)),
      devices_(describe_devices(runtime_)),
      budget_(machine_budget(devices_, configuration, available_host_bytes())),
      host_backing_(host_backing_of(devices_, configuration.host_backing)),
      events_(runtime_, runtime_.device_count()),
      sender_(runtime_, events_, hint_counters_),
      caches_(kFacades * devices_.size(), thread_cache_bytes(configuration, budget_.hard_bytes),
              [this](std::vector<Block*> blocks, const std::vector<PoolIndex>& streams) {
                give_back(std::move(blocks));
                note_thread_end(streams);
              }),
      planner_(configuration.policy, budget_.devices, ledger_, hint_counters_),
      pools_(configuration.requests_before_keeping),
      decay_(Decay::Duration(configuration.decay_seconds)) {
  if (configuration.host_backing == HostBacking::kOrdinary &&
      host_backing_ != HostBacking::kOrdinary) {
    log_line(LogLevel::kWarning,
             "UVMALLOC_HOST_MEMORY=ordinary needs devices that reach ordinary memory (pageable "
             "memory access), and not all do; managed memory is used");
  }
  statistics_.budget_bytes = budget_.hard_bytes;
  for (auto& facade : statistics_.classes) facade.resize(devices_.size());
  for (auto& facade : statistics_.service) facade.resize(devices_.size());
  device_limits_.assign(devices_.size(), SIZE_MAX);
  gone_and_over_ = std::make_unique<std::atomic<std::uint64_t>[]>(devices_.size());
  if (configuration_.trace_file.empty()) return;
  if (std::string why = start_trace(configuration_.trace_file); !why.empty()) {
    log_line(LogLevel::kWarning, why);
  }
}

CachingManagedAllocator::~CachingManagedAllocator() {
  caches_.close();
  for (Arena& arena : arenas_) {
    if (arena.pages != nullptr) arena.pages->close();
  }
  if (in_forked_child()) return;
  for (int device = 0; device < runtime_.device_count(); ++device) {
    if (statistics_.span_bytes.increased != 0) runtime_.synchronize_device(device);
  }
  pools_.each_extras([&](BlockExtras& extras) { release_events(&extras.fences); });
  waiting_.each([&](const Fence& fence) { events_.release(fence.stream.device, fence.event); });
  arenas_.clear();
  for (const auto& span : spans_.spans()) {
    unpoison(span->base, span->size_bytes);
    give_back_memory(*span);
  }
}

// ---- allocation

void* CachingManagedAllocator::allocate(Facade facade, int device, std::size_t size_bytes,
                                        StreamHandle stream) {
  if (ThreadCache* cache = caches_.mine();
      cache != nullptr && routed_.load(std::memory_order_relaxed) == 0) [[likely]] {
    ThreadCache::Outcome outcome{};
    PoolIndex pools = ThreadCache::kUnknownPools;
    const StreamHandle of = facade == Facade::kDevice ? stream : nullptr;
    cache->lock.enter();
    Block* block = cache->allocate(facade, device, of, size_bytes, &outcome, &pools);
    cache->lock.leave();
    if (block != nullptr) [[likely]] {
      void* address = block->address();
      unpoison(address, block->size_bytes());
      if (trace_.enabled()) [[unlikely]] {
        trace_.allocated_from_cache({facade, device, address, size_bytes, block->size_bytes(), of});
      }
      if (outcome == ThreadCache::Outcome::kDoneAtLimit) [[unlikely]]
        note_peaks(place_of(facade, device));
      return address;
    }
    if (pools != ThreadCache::kUnknownPools && size_bytes > kSmallBytes &&
        size_bytes <= kLargestRequest) {
      const Request request{facade,     device, BlockPools::rounded(facade, size_bytes),
                            size_bytes, of,     BlockPools::class_of(facade, size_bytes),
                            pools};
      if (void* address = allocate_from_pool(cache, request)) return address;
    }
  }
  return allocate_slowly(facade, device, size_bytes, stream);
}

// The classes of shared pages of a device's stream differ in habits alone: what does not fit in one
// is cut in the other, and stays that one's. Private pools keep them apart, so that a block can be
// had again where it was.
Pool* CachingManagedAllocator::other_class(const Pool& pool) {
  if (pool.key.facade != Facade::kDevice || pool.key.private_pool != 0) return nullptr;
  const PoolClass other =
      pool.pool_class == PoolClass::kMedium ? PoolClass::kPacked : PoolClass::kMedium;
  return &pools_.at(first_of(pool.index) + static_cast<PoolIndex>(other));
}

// What fits in the stream's pools, under one lock and without a call; nullptr where that does not
// do.
void* CachingManagedAllocator::allocate_from_pool(ThreadCache* cache, const Request& request) {
  Block* block = nullptr;
  TraceTime at = 0;
  bool is_time_to_tidy = false;
  drain_finished_fences();
  {
    std::unique_lock lock(lock_);  // inlined; lock_guard has too many users to be
    Pool& pool = pools_.at(request.pool());
    block = pools_.take_trimmed(pool, request.size_bytes);
    if (block == nullptr) {
      if (Pool* other = other_class(pool)) block = pools_.take_trimmed(*other, request.size_bytes);
    }
    if (block == nullptr) return nullptr;
    occupy(request, block);
    if (request.size_bytes >= kPackedBytes) is_time_to_tidy = ++pool.met % kRequestsPerTidying == 0;
    at = trace_.now();
  }
  decay_now_and_then();
  void* address = block->address();
  trace_.allocated(at, {request.facade, request.device, address, request.requested_bytes,
                        block->size_bytes(), request.stream});
  cache->lock.enter();
  bool within = cache->count_allocated(*block, true);
  cache->lock.leave();
  if (!within) note_peaks(place_of(request.facade, request.device));
  if (is_time_to_tidy) [[unlikely]]
    tidy(cache, request);
  return address;
}

// After some requests for large blocks that were met from their pool: what the thread keeps for the
// stream goes back to where it can be joined, and if there have been enough, large blocks are kept
// from now on.
void CachingManagedAllocator::tidy(ThreadCache* cache, const Request& request) {
  std::vector<Block*> kept;
  cache->lock.enter();
  cache->flush(request.pools, ThreadCache::Kept::kRuns, &kept);
  cache->lock.leave();
  give_back(std::move(kept));
  bool keep_large = false;
  {
    std::lock_guard lock(lock_);
    keep_large = pools_.at(request.pool()).keeps_large();
  }
  if (keep_large) caches_.keep_large(request.pools);
}

// Large blocks that were kept have stood in the way.
void CachingManagedAllocator::keep_no_large(const Request& request) {
  {
    std::lock_guard lock(lock_);
    for (PoolIndex pool = request.pools; pool < request.pools + kPoolsPerStream; ++pool) {
      pools_.at(pool).keep_no_large();
    }
  }
  std::vector<Block*> kept;
  caches_.keep_no_large(request.pools, &kept);
  give_back(std::move(kept));
}

void* CachingManagedAllocator::allocate_aligned(Facade facade, int device, std::size_t size_bytes,
                                                std::size_t alignment_bytes, StreamHandle stream) {
  return allocate_slowly(facade, device, size_bytes, stream, alignment_bytes);
}

void* CachingManagedAllocator::allocate_slowly(Facade facade, int device, std::size_t size_bytes,
                                               StreamHandle stream, std::size_t alignment_bytes) {
  if (in_forked_child()) return allocate_in_child(facade, size_bytes);
  if (device < 0 || device >= runtime_.device_count()) {
    throw std::invalid_argument(
        fmt::format("device {} does not exist; there are {}", device, runtime_.device_count()));
  }
  if (size_bytes == 0) return nullptr;
  Request request{facade,
                  device,
                  0,
                  size_bytes,
                  facade == Facade::kDevice ? stream : nullptr,
                  BlockPools::class_of(facade, size_bytes),
                  0};
  const bool is_aligned = alignment_bytes > kGranule;
  // To begin where it is asked for; what is in front of that is a block of its own.
  const std::size_t room_bytes =
      is_aligned && facade == Facade::kDevice ? alignment_bytes + BlockPools::kSmallestShared : 0;
  if (size_bytes > kLargestRequest - room_bytes) {
    out_of_memory(request,
                  {RuntimeError::kOutOfMemory, 0, "larger than any address space", "allocate"});
  }
  request.size_bytes = BlockPools::rounded(facade, size_bytes);
  if (is_aligned && facade != Facade::kDevice) {
    // Blocks of whole pages start on a page.
    request.size_bytes = round_up(size_bytes, kPageBytes);
    request.pool_class = PoolClass::kWhole;
  }
  StreamKey key{facade, device, request.stream, 0, DeviceStream::thread_of(request.stream)};
  bool whole_pages = false;
  if (facade == Facade::kDevice && routed_ != 0) {
    const Routed routed = private_pool_for(device, request.stream);
    key.private_pool = routed.id;
    whole_pages = routed.whole_pages;
    if (whole_pages) request.size_bytes = round_up(request.size_bytes, kPageBytes);
    if (routed.id != 0) {
      // No small objects there: they cannot be had again at a given address.
      request.size_bytes = std::max(request.size_bytes, BlockPools::kSmallestShared);
      request.pool_class = BlockPools::class_of(facade, request.size_bytes);
    }
  }
  if (room_bytes != 0 && !whole_pages) {
    request.aligned = {alignment_bytes, std::max(request.size_bytes, BlockPools::kSmallestShared)};
    request.size_bytes = request.aligned.size_bytes + room_bytes;
    request.pool_class = BlockPools::class_of(facade, request.size_bytes);
  }
  if (key.thread != 0 && key.private_pool == 0) take_over_pools(key);
  bool is_new = false;
  bool keep_large = false;
  {
    std::lock_guard lock(lock_);
    std::size_t before = pools_.pools().size();
    request.pools = pools_.pools_of(key);
    is_new = pools_.pools().size() != before;
    keep_large = pools_.at(request.pool()).keeps_large();
  }
  if (is_new && facade == Facade::kDevice) trace_.stream_seen(trace_.now(), device, stream);
  if (ThreadCache* cache = caches_.mine()) {
    // The stream's blocks may be here, only not among the streams used of late.
    ThreadCache::Outcome outcome{};
    PoolIndex pools = 0;
    std::vector<Block*> large;
    bool goes_on = true;
    cache->lock.enter();
    open_to_count(cache, key, request.pools, true);
    if (keep_large) cache->keep_large(request.pools, true);
    Block* block =
        key.private_pool != 0 || is_aligned
            ? nullptr
            : cache->allocate(facade, device, request.stream, size_bytes, &outcome, &pools);
    if (block == nullptr && request.size_bytes >= kPackedBytes) {
      goes_on = cache->take_out_large(request.pools, &large);
    }
    cache->lock.leave();
    give_back(std::move(large));
    if (!goes_on) keep_no_large(request);
    if (block != nullptr) {
      void* address = block->address();
      unpoison(address, block->size_bytes());
      trace_.allocated(trace_.now(),
                       {facade, device, address, size_bytes, block->size_bytes(), request.stream});
      if (outcome == ThreadCache::Outcome::kDoneAtLimit) note_peaks(place_of(facade, device));
      return address;
    }
  }
  return request.pool_class == PoolClass::kSmall ? allocate_small(request) : allocate_run(request);
}

// ---- small objects

std::shared_ptr<SmallArena> CachingManagedAllocator::arena_of(PoolIndex pool) {
  std::size_t index = pool / kPoolsPerStream;
  {
    std::lock_guard lock(lock_);
    if (index < arenas_.size() && arenas_[index].arena != nullptr) return arenas_[index].arena;
  }
  // With arena_mutex_, so nobody else makes one meanwhile.
  auto pages = std::make_unique<SmallPages>(*this, pool);
  auto arena = std::make_shared<SmallArena>(*pages);
  std::lock_guard lock(lock_);
  if (index >= arenas_.size()) arenas_.resize(index + 1);
  arenas_[index] = {std::move(pages), arena};
  return arena;
}

// A batch from the arena: one for the caller, the rest for its thread's cache. Returns how many
// there were.
std::size_t CachingManagedAllocator::refill(const Request& request,
                                            std::shared_ptr<SmallArena> arena, Block** first) {
  std::array<void*, kRefillBlocks> addresses;
  std::array<Block*, kRefillBlocks> blocks;
  ThreadCache* cache = caches_.mine();
  std::size_t wanted = cache == nullptr ? 1
                                        : std::clamp(kRefillBytes / request.size_bytes,
                                                     std::size_t{1}, kRefillBlocks);
  std::size_t count = arena->allocate(request.size_bytes, addresses.data(), wanted);
  if (count == 0) return 0;
  {
    std::lock_guard lock(lock_);
    for (std::size_t i = 0; i < count; ++i) {
      Block* block = pools_.add_small(static_cast<char*>(addresses[i]), request.size_bytes);
      block->real.origin = Place::device(pools_.span_of(*block)->device);
      block->real.indirect = &block->use;
      block->use.location = wanted_place(request.facade, request.device);
      blocks[i] = block;
    }
  }
  if (count > 1) {
    cache->lock.enter();
    // Backwards: the cache gives the lowest first.
    for (std::size_t i = count; i-- > 1;) cache->put_spare(blocks[i]);
    cache->lock.leave();
  }
  *first = blocks[0];
  return count;
}

void* CachingManagedAllocator::allocate_small(const Request& request) {
  drain_finished_fences();
  decay_now_and_then();
  Block* block = nullptr;
  RuntimeStatus status;
  HintPlan plan;
  bool last = false;
  bool from_cache = true;
  for (int round = 0; block == nullptr; ++round) {
    {
      std::lock_guard arenas(arena_mutex_);
      const std::uint64_t takes = small_takes_;
      refill(request, arena_of(request.pool()), &block);
      from_cache = from_cache && takes == small_takes_;
      std::lock_guard lock(lock_);
      // What is left there is sent with a later request.
      if (plan.empty()) plan.swap(small_plan_);
    }
    if (block != nullptr) break;
    // Other threads' spare objects first, then pages.
    bool any_large = false;
    if (round == 0 && reclaim(request.pools, ThreadCache::Kept::kSmall, &any_large)) continue;
    if (last) out_of_memory(request, status);
    // Without a page there may be objects: of blocks that were behind fences, of other sizes, or
    // freed by a callback.
    last = !make_room_for_small(request, &status);
    if (last) throw_if_broken(request, status);
  }
  void* address = nullptr;
  TraceTime at = 0;
  {
    std::lock_guard lock(lock_);
    address = occupy(request, block);
    at = trace_.now();
  }
  trace_.allocated(at, {request.facade, request.device, address, request.requested_bytes,
                        request.size_bytes, request.stream});
  count_allocation(request, *block, from_cache);
  if (!plan.empty() && !is_capturing()) {
    try {
      send(plan, request.device, {}, consumer_of(request));
    } catch (const std::bad_alloc&) {
      // As in hand_out().
    }
  }
  return address;
}

// Sees to it that the arena's next call for a page succeeds, or says why it cannot.
bool CachingManagedAllocator::make_room_for_small(const Request& request, RuntimeStatus* status) {
  auto has_room = [&](bool any_facade) {
    std::lock_guard lock(lock_);
    SpanStore::Run run = spans_.find(request.facade, request.device, kPageBytes, any_facade);
    return run.span != nullptr &&
           is_within_limits(pools_.at(request.pools).key, run.untouched_bytes, kPageBytes);
  };
  auto within_limits = [&] {
    std::lock_guard lock(lock_);
    return is_within_limits(pools_.at(request.pools).key, kPageBytes, kPageBytes);
  };
  if (has_room(false)) return true;
  if (within_limits()) {
    *status = add_span(request);
    if (status->ok()) return true;
  } else {
    *status = kOverBudget;
  }
  if (!is_capturing()) wait_for_fences(&service_of(request));
  for (const auto& callback : pressure_callbacks()) (*callback)();
  if (!is_capturing()) {
    {
      std::lock_guard lock(lock_);
      ++statistics_.pressure_rounds;
      ++service_of(request).pressure_rounds;
    }
    release_pages(SIZE_MAX);
  }
  if (has_room(false)) return true;
  if (within_limits()) {
    *status = add_span(request);
    if (status->ok()) return true;
  }
  if (!has_room(true)) return false;
  std::lock_guard arenas(arena_mutex_);
  std::lock_guard lock(lock_);
  arenas_[request.pool() / kPoolsPerStream].pages->may_use_any_facade = true;
  return true;
}

// ---- blocks of pages

void* CachingManagedAllocator::allocate_run(const Request& request) {
  auto cached = [&] {
    std::lock_guard lock(lock_);
    return find_cached(request);
  };
  drain_finished_fences();
  decay_now_and_then();
  RuntimeStatus status;
  Found found = cached();
  if (found.block == nullptr && !is_capturing()) found = recall(request);
  bool kept_large = false;
  if (found.block == nullptr && reclaim(request.pools, ThreadCache::Kept::kRuns, &kept_large))
    found = cached();
  if (kept_large) keep_no_large(request);
  if (found.block == nullptr) found = borrow(request);
  if (found.block == nullptr) {
    found = grow(request, false, &status);
    if (found.block == nullptr) throw_if_broken(request, status);
    if (found.block == nullptr) found = under_pressure(request, &status);
    if (found.block == nullptr) out_of_memory(request, status);
  }
  return hand_out(request, found);
}

// With the lock: what fits among the pool's own blocks, then in the stream's other class, then
// among its guests.
CachingManagedAllocator::Found CachingManagedAllocator::find_cached(const Request& request) {
  Pool& pool = pools_.at(request.pool());
  RunBlock* block = pools_.take(pool, request.size_bytes);
  if (block == nullptr) {
    if (Pool* other = other_class(pool)) block = pools_.take(*other, request.size_bytes);
  }
  if (block == nullptr) block = take_guest(request, request.pools);
  if (block == nullptr) return {};
  block = pools_.trim(block, request.size_bytes);
  // What is left here guarded a whole guest against its home; this caller is ordered by its stream.
  if (BlockExtras* extras = pools_.extras(block)) {
    release_events(&extras->fences);
    pools_.drop_extras(block);
  }
  return {block, true};
}

// With the lock: of the stream with those pools. Its pages count with the caller's from now on.
RunBlock* CachingManagedAllocator::take_guest(const Request& request, PoolIndex pools) {
  const std::size_t pages_bytes = round_up(request.size_bytes, kPageBytes);
  if (request.requested_bytes < kWholeBytes ||
      !is_within_limits(pools_.at(request.pool()).key, 0, pages_bytes)) {
    return nullptr;
  }
  return pools_.take_guest(whole_pool(pools), request.size_bytes);
}

// Of a free block that the caller has taken: whether its fences are over, and gone then. With the
// lock, which is let go meanwhile.
bool CachingManagedAllocator::shed_fences(RunBlock* block, std::unique_lock<StateLock>* lock) {
  const BlockExtras* extras = pools_.extras(block);
  if (extras == nullptr) return true;
  std::vector<Fence> fences;
  try {
    fences = extras->fences;
  } catch (const std::bad_alloc&) {
    pools_.put(block, pools_.at(block->pool));
    throw;
  }
  lock->unlock();
  const bool done = fences_done(fences);
  lock->lock();
  if (done) {
    release_events(&fences);
    pools_.drop_extras(block);
  }
  return done;
}

// A block made for this pool whose pages have moved elsewhere, once nobody works on it there.
CachingManagedAllocator::Found CachingManagedAllocator::recall(const Request& request) {
  std::unique_lock lock(lock_);
  RunBlock* block = pools_.take_away(pools_.at(request.pool()), request.size_bytes);
  if (block == nullptr) return {};
  if (!shed_fences(block, &lock)) {
    pools_.put(block, pools_.at(block->pool));
    return {};
  }
  block = pools_.trim(block, request.size_bytes);
  ++statistics_.recalls;
  return {block, true, block->address(), block->size_bytes()};
}

// Brings small objects, or all others, that thread caches hold for the stream back to its pools.
// False: there were none.
bool CachingManagedAllocator::reclaim(PoolIndex pools, ThreadCache::Kept kept, bool* any_large) {
  std::vector<Block*> blocks;
  {
    ThreadCaches::Frozen frozen(caches_);
    caches_.flush(pools, kept, &blocks);
  }
  *any_large = std::any_of(blocks.begin(), blocks.end(),
                           [](const Block* block) { return block->size_bytes() >= kPackedBytes; });
  bool any = !blocks.empty();
  give_back(std::move(blocks));
  return any;
}

void CachingManagedAllocator::reclaim_all() {
  std::vector<Block*> blocks;
  {
    ThreadCaches::Frozen frozen(caches_);
    caches_.flush_all(&blocks);
  }
  give_back(std::move(blocks));
}

// Whole pages that lie free in the other pool of a host facade.
CachingManagedAllocator::Found CachingManagedAllocator::borrow(const Request& request) {
  if (request.facade == Facade::kDevice) return {};
  const PoolClass other =
      request.pool_class == PoolClass::kMedium ? PoolClass::kWhole : PoolClass::kMedium;
  const std::size_t size_bytes = round_up(request.size_bytes, kPageBytes);
  std::lock_guard lock(lock_);
  Pool& lender = pools_.at(request.pools + static_cast<PoolIndex>(other));
  const BlockPools::Pages pages = pools_.take_pages(lender, size_bytes);
  if (pages.base == nullptr) return {};
  Pool& pool = pools_.at(request.pool());
  remove_from_pool(lender, pages.base, size_bytes);
  add_to_pool(pool, pages.base, size_bytes);
  RunBlock* block = pools_.add_pages(pages.span, pages.base, size_bytes, pool, pages.placement);
  return {pools_.trim(block, request.size_bytes), true};
}

std::size_t CachingManagedAllocator::span_size(const Request& request) const {
  const std::size_t least = round_up(request.size_bytes, kPageBytes);
  if (configuration_.span_bytes) {
    const std::size_t wanted = round_up(*configuration_.span_bytes, kPageBytes);
    return std::max(std::min(wanted, kLargestRequest), least);
  }
  const DeviceCapabilities& can = devices_[static_cast<std::size_t>(request.device)].capabilities;
  const bool gives_pages_back = is_ordinary(request.facade) || (can.discard && !can.integrated);
  const std::size_t usual =
      gives_pages_back ? kMostSpanBytes : std::max(kLeastSpanBytes, least * kRequestsPerSpan);
  const std::size_t budget_bytes = round_up(budget_.hard_bytes, kPageBytes);
  return std::max(std::min({usual, kMostSpanBytes, budget_bytes}), least);
}

// Sends hints, without locks, and traces them.
void CachingManagedAllocator::send(const HintPlan& plan, int device, DeviceStream producer,
                                   DeviceStream consumer) {
  const std::vector<FailedHint> failed = sender_.send(plan, device, producer, consumer);
  if (!failed.empty()) {
    std::lock_guard lock(lock_);
    for (const FailedHint& one : failed) {
      const Hint& hint = plan[one.place_in_plan];
      if (hint.kind == HintKind::kPrefetch) {
        ledger_.set(hint.address, hint.size_bytes, Place::nowhere());
      }
    }
  }
  if (!trace_.enabled()) return;
  auto next_failed = failed.begin();
  for (std::size_t place = 0; place < plan.size(); ++place) {
    const Hint& hint = plan[place];
    if (next_failed != failed.end() && next_failed->place_in_plan == place) {
      trace_.call_failed(trace_.now(), device, hint.address, hint.size_bytes, next_failed->status);
      ++next_failed;
    } else if (hint.kind == HintKind::kAdvise) {
      trace_.advised(trace_.now(), device, hint.address, hint.size_bytes, hint.advice, hint.place);
    } else {
      trace_.prefetched(trace_.now(), device, hint.address, hint.size_bytes, hint.place,
                        sender_.lane(device));
    }
  }
}

RuntimeStatus CachingManagedAllocator::take_memory(Span* span) const {
  if (span->ordinary) {
    span->raw = map_ordinary(span->size_bytes);
    if (span->raw != nullptr) return {};
    return {RuntimeError::kOutOfMemory, ENOMEM, "ENOMEM", "mmap"};
  }
  RuntimeStatus status = runtime_.allocate_managed(span->device, span->size_bytes, &span->raw);
  if (!status.ok() || address_of(span->raw) % kPageBytes == 0) return status;
  // Drivers align large managed allocations to 2 MiB; where one does not, a page more holds an
  // aligned span.
  runtime_.free_managed(span->device, span->raw);
  return runtime_.allocate_managed(span->device, span->size_bytes + kPageBytes, &span->raw);
}

RuntimeStatus CachingManagedAllocator::give_back_memory(const Span& span) const noexcept {
  if (!span.ordinary) return runtime_.free_managed(span.device, span.raw);
  unmap_ordinary(span.raw, span.size_bytes);
  return {};
}

RuntimeStatus CachingManagedAllocator::add_span(const Request& request) {
  auto span = std::make_unique<Span>();
  span->facade = request.facade;
  span->device = request.device;
  span->ordinary = is_ordinary(request.facade);
  const std::size_t wanted_bytes = span_size(request);
  const std::size_t least_bytes = round_up(request.size_bytes, kPageBytes);
  span->size_bytes = std::max(std::min(wanted_bytes, most_span_bytes_.load()), least_bytes);
  const auto begin = std::chrono::steady_clock::now();
  RuntimeStatus status = take_memory(span.get());
  // So much address space may not be had in one piece.
  while (status.error == RuntimeError::kOutOfMemory && span->size_bytes > least_bytes) {
    span->size_bytes = std::max(round_up(span->size_bytes / 2, kPageBytes), least_bytes);
    status = take_memory(span.get());
  }
  const auto taken = std::chrono::steady_clock::now() - begin;
  if (!status.ok()) {
    trace_.call_failed(trace_.now(), request.device, nullptr, span->size_bytes, status);
    return status;
  }
  most_span_bytes_ = span->size_bytes < wanted_bytes ? 2 * span->size_bytes : SIZE_MAX;
  span->base = reinterpret_cast<char*>(round_up(address_of(span->raw), kPageBytes));
  const Span memory = *span;
  try {
    HintPlan plan;
    {
      std::lock_guard lock(lock_);
      plan = planner_.plan_span(span->base, span->size_bytes, span->facade, span->device,
                                &span->placement);
    }
    // Before anyone can see the span: its pages are to be populated under this advice.
    send(plan, request.device);
    std::lock_guard lock(lock_);
    ledger_.add_span(span->base, span->size_bytes);
    spans_.add(std::move(span));
    statistics_.span_bytes.increase(memory.size_bytes);
    service_of(request).span_allocations.add(taken);
  } catch (const std::bad_alloc&) {
    // Nobody knows of it yet.
    {
      std::lock_guard lock(lock_);
      ledger_.remove_span(memory.base);
    }
    give_back_memory(memory);
    throw;
  }
  return {};
}

// With the lock: where the fewest new pages would be touched. For a pool of shared pages that is
// often between two of its runs, or behind one, where free blocks that end or begin there lack only
// a part.
CachingManagedAllocator::Growth CachingManagedAllocator::plan_growth(const Request& request,
                                                                     bool any_facade) const {
  Growth best;
  best.size_bytes = round_up(request.size_bytes, kPageBytes);
  best.run = spans_.find(request.facade, request.device, best.size_bytes, any_facade);
  const Pool& pool = pools_.at(request.pool());
  if (pool.pool_class == PoolClass::kWhole) return best;
  auto consider = [&](Span* span, const char* base, std::size_t size_bytes) {
    const SpanStore::Run run = spans_.find_at(span, base, size_bytes);
    if (run.span == nullptr) return;
    const bool better =
        best.run.span == nullptr || std::pair(run.untouched_bytes, size_bytes) <
                                        std::pair(best.run.untouched_bytes, best.size_bytes);
    if (better) best = {run, size_bytes};
  };
  auto missing_bytes = [&](std::size_t there) {
    return round_up(request.size_bytes - there, kPageBytes);
  };
  spans_.each_free(
      request.facade, request.device, [&](Span* span, char* base, std::size_t size_bytes) {
        char* end = base + size_bytes;
        const std::size_t before = pools_.free_bytes_before(pool, *span, base);
        const std::size_t after = pools_.free_bytes_after(pool, *span, end);
        // Freed since it was looked for.
        if (std::max(before, after) >= request.size_bytes) return;
        if (before != 0) consider(span, base, missing_bytes(before));
        if (after != 0) {
          consider(span, end - missing_bytes(after), missing_bytes(after));
        }
        if (before != 0 && after != 0 && before + size_bytes + after >= request.size_bytes) {
          consider(span, base, size_bytes);
        }
      });
  return best;
}

// With the lock: whether any of it is believed to be there.
bool CachingManagedAllocator::is_on_a_device(const void* address, std::size_t size_bytes) const {
  for (int device = 0; device < runtime_.device_count(); ++device) {
    if (ledger_.bytes_at(address, size_bytes, Place::device(device)) != 0) return true;
  }
  return false;
}

// New pages, from a span that has room or a new one; none where the budget or the driver refuses.
CachingManagedAllocator::Found CachingManagedAllocator::grow(const Request& request,
                                                             bool any_facade,
                                                             RuntimeStatus* status) {
  for (;;) {
    HintPlan plan;
    Found found;
    {
      std::lock_guard lock(lock_);
      Growth growth = plan_growth(request, any_facade);
      const SpanStore::Run& run = growth.run;
      std::size_t more = run.span != nullptr ? run.untouched_bytes : growth.size_bytes;
      if (!is_within_limits(pools_.at(request.pool()).key, more, growth.size_bytes)) {
        *status = kOverBudget;
        return {};
      }
      if (run.span != nullptr) {
        spans_.take(run, growth.size_bytes);
        statistics_.touched_bytes.increase(run.untouched_bytes);
        Pool& pool = pools_.at(request.pool());
        SegmentPlacement placement = run.span->placement;
        RunBlock* block = nullptr;
        try {
          const Place wanted = wanted_place(request.facade, request.device);
          if (run.span->facade != request.facade || run.span->device != request.device) {
            plan = planner_.plan_move(run.base(), growth.size_bytes, &placement, wanted);
          } else if (wanted.is_host() && is_on_a_device(run.base(), growth.size_bytes)) {
            // Of a block that had moved; what was advised for it is known no more.
            SegmentPlacement of_the_block = placement;
            of_the_block.preferred = Place::nowhere();
            plan = planner_.plan_move(run.base(), growth.size_bytes, &of_the_block, wanted);
          }
          block = pools_.add_pages(run.span, run.base(), growth.size_bytes, pool, placement);
        } catch (const std::bad_alloc&) {
          spans_.give_back(run.span, run.base(), growth.size_bytes);
          throw;
        }
        add_to_pool(pool, run.base(), growth.size_bytes);
        if (growth.size_bytes < request.size_bytes) {
          // It joins the tail that it makes long enough.
          pools_.put(block, pool);
          block = pools_.take(pool, request.size_bytes);
        }
        found = {pools_.trim(block, request.size_bytes), false, nullptr, 0};
        if (request.facade == Facade::kDevice) {
          found.populate = run.base();
          found.populate_bytes = growth.size_bytes;
        }
      }
    }
    if (found.block != nullptr) {
      send(plan, request.device);
      return found;
    }
    *status = add_span(request);
    if (!status->ok()) return {};
  }
}

// The block is taken before the device is waited for: one that is freed meanwhile may have work
// pending.
CachingManagedAllocator::Found CachingManagedAllocator::steal_from_other_streams(
    const Request& request) {
  if (request.facade != Facade::kDevice) return {};
  RunBlock* block = nullptr;
  {
    std::lock_guard lock(lock_);
    // What a private pool gets must be its own until it is released.
    if (pools_.at(request.pools).key.private_pool != 0) return {};
    for (const auto& pool : pools_.pools()) {
      if (!may_release(*pool) || pool->key.facade != request.facade ||
          pool->key.device != request.device || pool->pool_class != request.pool_class) {
        continue;
      }
      block = pools_.take(*pool, request.size_bytes);
      if (block == nullptr) block = take_guest(request, first_of(pool->index));
      if (block != nullptr) break;
    }
  }
  if (block == nullptr) return {};
  const bool is_idle = wait_for_device(request.device);
  std::lock_guard lock(lock_);
  if (!is_idle) {
    pools_.put(block, pools_.at(block->pool));
    return {};
  }
  if (BlockExtras* extras = pools_.extras(block)) {
    release_events(&extras->fences);
    pools_.drop_extras(block);
  }
  return {pools_.trim(block, request.size_bytes), true};
}

CachingManagedAllocator::Found CachingManagedAllocator::under_pressure(const Request& request,
                                                                       RuntimeStatus* status) {
  auto cached = [&] {
    std::unique_lock lock(lock_);
    Found found = find_cached(request);
    lock.unlock();
    return found.block != nullptr || is_capturing() ? found : recall(request);
  };
  reclaim_all();
  if (!is_capturing()) wait_for_fences(&service_of(request));
  if (Found found = cached(); found.block != nullptr) return found;
  if (Found found = borrow(request); found.block != nullptr) return found;
  if (!is_capturing()) {
    if (Found found = steal_from_other_streams(request); found.block != nullptr) return found;
  }
  for (const auto& callback : pressure_callbacks()) {
    if (!(*callback)()) continue;
    reclaim_all();
    if (Found found = cached(); found.block != nullptr) return found;
  }
  {
    std::lock_guard lock(lock_);
    ++statistics_.pressure_rounds;
    ++service_of(request).pressure_rounds;
    pools_.spare_pages();
  }
  if (!is_capturing()) release_pages(SIZE_MAX);
  if (Found found = grow(request, false, status); found.block != nullptr) return found;
  return grow(request, true, status);
}

// With the lock: gives a taken block to the caller, with its pair of records.
[[gnu::always_inline]] inline void* CachingManagedAllocator::occupy(const Request& request,
                                                                    Block* block) {
  const PoolIndex home = pools_.home_of(*block);
  // Of whatever class, a block of the same stream is where it belongs.
  block->pool = first_of(home) == request.pools ? home : request.pool();
  // A guest must find its way home when it is freed.
  block->plain = home == block->pool;
  if (home != block->pool) lend_pages(*block, home, block->pool);
  block->exported = false;
  block->real.references = 0;
  block->real.indirect = nullptr;
  std::construct_at(&block->use);
  block->use.size_bytes = request.requested_bytes;
  block->use.location = wanted_place(request.facade, request.device);
  block->real.attach(&block->use);
  block->set(BlockState::kLive);
  unpoison(block->address(), block->size_bytes());
  return block->address();
}

void* CachingManagedAllocator::hand_out(const Request& request, Found found) {
  void* address = nullptr;
  TraceTime at = 0;
  {
    std::lock_guard lock(lock_);
    if (request.aligned.to_bytes != 0) {
      found.block =
          pools_.trim_aligned(found.block, request.aligned.to_bytes, request.aligned.size_bytes);
    }
    address = occupy(request, found.block);
    at = trace_.now();
  }
  trace_.allocated(at, {request.facade, request.device, address, request.requested_bytes,
                        found.block->size_bytes(), request.stream});
  count_allocation(request, *found.block, found.from_cache);
  // A captured stream cannot wait for the lane: its pages are then populated by first use.
  if (found.populate != nullptr && !is_capturing()) {
    try {
      HintPlan plan;
      {
        std::lock_guard lock(lock_);
        plan = planner_.plan_use(found.populate, found.populate_bytes,
                                 wanted_place(request.facade, request.device));
      }
      send(plan, request.device, {}, consumer_of(request));
    } catch (const std::bad_alloc&) {
      // The block is there without the hint.
    }
  }
  return address;
}

// A driver that refuses memory for another reason than that there is none is not helped by giving
// any back, and who hears of it should hear why.
void CachingManagedAllocator::throw_if_broken(const Request& request, const RuntimeStatus& status) {
  switch (status.error) {
    case RuntimeError::kNone:
    case RuntimeError::kNotReady:
    case RuntimeError::kOutOfMemory:
    case RuntimeError::kCapture:
      return;
    default:
      throw std::runtime_error(
          fmt::format("uvmalloc: {} asked of the {} facade on device {} cannot be had: {}",
                      format_size(request.requested_bytes), to_string(request.facade),
                      request.device, status.text()));
  }
}

void CachingManagedAllocator::out_of_memory(const Request& request, const RuntimeStatus& status) {
  trace_.out_of_memory(trace_.now(),
                       {request.facade, request.device, nullptr, request.requested_bytes,
                        request.size_bytes, request.stream},
                       status);
  std::string table = holders_table();
  {
    std::lock_guard lock(lock_);
    ++statistics_.out_of_memory;
    ++service_of(request).out_of_memory;
  }
  throw OutOfMemoryError(
      request.requested_bytes,
      fmt::format(
          "uvmalloc: out of memory: {} asked of the {} facade on device {} cannot be had ({}).\n{}"
          "Everything cached was given back and the request tried again. To allow more, raise "
          "UVMALLOC_BUDGET; to need less, use smaller batches or free tensors first.",
          format_size(request.requested_bytes), to_string(request.facade), request.device,
          status.ok() ? "no memory" : std::string(status.native_name), table));
}

std::string CachingManagedAllocator::holders_table() const {
  const Statistics now = statistics();
  std::string table =
      fmt::format("  {:<8} {:>12} {:>12} {:>10}\n", "facade", "in use", "peak", "blocks");
  for (std::size_t facade = 0; facade < kFacades; ++facade) {
    std::uint64_t blocks = 0;
    for (const auto& device : now.classes[facade]) {
      blocks += device[kSizeClasses].allocations.current;
    }
    const Gauge& bytes = now.facade_bytes[facade];
    table += fmt::format("  {:<8} {:>12} {:>12} {:>10}\n", to_string(static_cast<Facade>(facade)),
                         format_size(bytes.current), format_size(bytes.peak), blocks);
  }
  return table + fmt::format("  touched {} of a budget of {}, {} of it free in pieces up to {}\n",
                             format_size(now.touched_bytes.current), format_size(now.budget_bytes),
                             format_size(now.free_bytes), format_size(now.largest_free_bytes));
}

// ---- free

FreeResult CachingManagedAllocator::free(void* address) noexcept {
  if (ThreadCache* cache = caches_.mine()) [[likely]] {
    Block* block = cache->known_at(address);
    if (block == nullptr) block = pools_.block_at(address);
    if (block != nullptr && block->now() == BlockState::kLive && block->plain) [[likely]] {
      // Before the block can be anybody else's.
      const TraceRecorder::FreeMoment moment = trace_.now_of_free(address);
      const std::size_t requested_bytes = block->requested_bytes();
      const std::size_t size_bytes = block->size_bytes();
      poison(address, size_bytes);
      cache->lock.enter();
      const StreamKey* key = cache->put(block);
      bool kept = true;
      if (key == nullptr && block->kind != BlockKind::kSmall) {
        key = cache->pass_on(*block);
        kept = false;
      }
      cache->lock.leave();
      if (key != nullptr) [[likely]] {
        if (moment.at != 0 && !trace_.freed_own(moment)) [[unlikely]] {
          trace_.freed(moment.at, {key->facade, key->device, address, requested_bytes, size_bytes,
                                   key->stream});
        }
        if (!kept) give_back_to_pool(static_cast<RunBlock*>(block));
        return FreeResult::kFreed;
      }
    }
  }
  return free_slowly(address);
}

// A plain block that has been counted as freed.
void CachingManagedAllocator::give_back_to_pool(RunBlock* block) noexcept {
  try {
    std::unique_lock lock(lock_);  // as in allocate_from_pool()
    block->set(BlockState::kReleasing);
    pools_.put(block, pools_.at(block->pool));
  } catch (const std::bad_alloc&) {
    log_lost_block();
  }
  decay_now_and_then();
}

FreeResult CachingManagedAllocator::free_slowly(void* address) noexcept {
  if (address == nullptr) return FreeResult::kFreed;
  Block* block = nullptr;
  bool is_plain = false;
  bool fence = false;
  TraceTime at = 0;
  StreamKey key;
  {
    std::lock_guard lock(lock_);
    block = pools_.find(address);
    if (in_forked_child()) {
      // The parent's blocks are not the child's to free: the copy goes with the process.
      if (block != nullptr) return FreeResult::kFreed;
      if (child_blocks_.erase(address) == 0) return FreeResult::kNotOurs;
      std::free(address);
      return FreeResult::kFreed;
    }
    if (block == nullptr) {
      if (!pools_.is_ours(address)) return FreeResult::kNotOurs;
      log_line(LogLevel::kError,
               fmt::format("free({}): a second free, of memory that is in no block any more; "
                           "nothing was freed",
                           address));
      return FreeResult::kDouble;
    }
    const bool is_live = block->now() == BlockState::kLive;
    if (!is_live || block->address() != address) {
      // A free block may have been joined with the one before it.
      FreeResult result = is_live ? FreeResult::kInterior : FreeResult::kDouble;
      log_line(LogLevel::kError,
               fmt::format("free({}): {} of a block of {} at {}, {} facade; nothing was freed",
                           address, is_live ? "not the start" : "a second free",
                           format_size(block->size_bytes()), static_cast<void*>(block->address()),
                           to_string(pools_.at(block->pool).key.facade)));
      return result;
    }
    key = pools_.at(block->pool).key;
    is_plain = block->plain;
    if (!is_plain) {
      while (IndirectStorage* record = block->real.indirect) {
        block->real.detach(record);
        if (record != &block->use) drop_record(static_cast<MovedStorage*>(record));
      }
      try {
        fence = needs_fence(*block, pools_.at(pool_for(*block)));
      } catch (const std::bad_alloc&) {
        fence = true;  // its pools could not be made; nor may they be below
      }
    }
    if (const PoolIndex home = pools_.home_of(*block); home != block->pool) {
      lend_pages(*block, block->pool, home);
    }
    at = trace_.now_of_free(address).at;
    block->set(BlockState::kReleasing);
    poison(block->address(), block->size_bytes());
  }
  trace_.freed(at, {key.facade, key.device, address, block->requested_bytes(), block->size_bytes(),
                    key.stream});
  try {
    count_free(*block, key);
    if (fence) {
      fence_and_give_back(block);
    } else {
      if (!is_plain) {
        std::lock_guard lock(lock_);
        block->pool = pool_for(*block);
        pools_.drop_extras(block);
      }
      give_back_plain(block);
    }
  } catch (const std::bad_alloc&) {
    log_lost_block();
  }
  return FreeResult::kFreed;
}

// A block that nobody waits for, to the pool it belongs to now; with a full bin of small objects
// goes half of the bin.
void CachingManagedAllocator::give_back_plain(Block* block) {
  std::vector<Block*> blocks = {block};
  if (block->kind == BlockKind::kSmall) {
    ThreadCache* cache = caches_.mine();
    if (cache != nullptr && cache->is_open(first_of(block->pool))) {
      cache->lock.enter();
      cache->flush_half(*block, &blocks);
      cache->lock.leave();
    }
  }
  give_back(std::move(blocks));
}

// Blocks in no cache and no index, each to its pool; small ones to their arenas, by size.
void CachingManagedAllocator::give_back(std::vector<Block*> blocks) {
  if (blocks.empty()) return;
  auto small_end = std::partition(blocks.begin(), blocks.end(), [](const Block* block) {
    return block->kind == BlockKind::kSmall;
  });
  if (small_end == blocks.begin()) {
    std::lock_guard lock(lock_);
    for (Block* block : blocks) {
      pools_.put(static_cast<RunBlock*>(block), pools_.at(block->pool));
    }
    return;
  }
  auto alike = [](const Block* left, const Block* right) {
    return std::pair(left->pool, left->size_bytes()) < std::pair(right->pool, right->size_bytes());
  };
  std::sort(blocks.begin(), small_end, alike);
  struct Batch {
    std::shared_ptr<SmallArena> arena;
    std::size_t size_bytes;
    std::vector<void*> addresses;
  };
  std::vector<Batch> batches;
  std::lock_guard arenas(arena_mutex_);
  {
    std::lock_guard lock(lock_);
    for (auto at = small_end; at != blocks.end(); ++at) {
      pools_.put(static_cast<RunBlock*>(*at), pools_.at((*at)->pool));
    }
    const Block* last = nullptr;
    for (auto at = blocks.begin(); at != small_end; ++at) {
      Block* block = *at;
      if (last == nullptr || alike(last, block)) {
        batches.push_back({arenas_[block->pool / kPoolsPerStream].arena, block->size_bytes(), {}});
      }
      last = block;
      batches.back().addresses.push_back(block->address());
    }
    for (auto at = blocks.begin(); at != small_end; ++at) pools_.remove_small(*at);
  }
  for (const Batch& batch : batches) {
    batch.arena->free(batch.addresses.data(), batch.addresses.size(), batch.size_bytes);
  }
}

// With the lock: the pool of the place where the block's pages are. Its records are gone; the last
// one's place stays in `use`.
PoolIndex CachingManagedAllocator::pool_for(const Block& block) {
  PoolIndex home = pools_.home_of(block);
  const StreamKey& key = pools_.at(home).key;
  Place place = block.use.location;
  if (block.kind != BlockKind::kWhole || place == wanted_place(key.facade, key.device)) return home;
  StreamKey there{Facade::kHost, key.device, nullptr};
  if (place.is_device()) {
    // Who has not moved it was served there.
    const BlockExtras* extras = pools_.extras(&block);
    const bool moved = extras != nullptr && extras->mover.exists();
    DeviceStream stream = moved ? extras->mover : pools_.at(block.pool).key.device_stream();
    // Nobody asks there any more; somebody may on the default stream.
    if (stream.is_gone()) stream = {place.index, nullptr, 0};
    there = {Facade::kDevice, place.index, stream.handle, 0, stream.thread};
  }
  return pools_.pools_of(there) + static_cast<PoolIndex>(PoolClass::kWhole);
}

// With the lock: every stream that may have work on the block.
std::vector<DeviceStream> CachingManagedAllocator::users_of(const Block& block) const {
  std::vector<DeviceStream> users;
  if (const BlockExtras* extras = pools_.extras(&block)) users = extras->uses;
  const StreamKey& key = pools_.at(block.pool).key;
  if (key.facade == Facade::kDevice) users.push_back(key.device_stream());
  return users;
}

// The streams whose work must be over before the blocks of `pool` may include this one.
std::vector<DeviceStream> CachingManagedAllocator::streams_to_wait_for(const Block& block,
                                                                       const Pool& pool) const {
  std::vector<DeviceStream> streams = users_of(block);
  if (pool.key.facade == Facade::kDevice) {
    std::erase(streams, pool.key.device_stream());
  }
  return streams;
}

// Whether anybody but the pool's own stream may still use the block, or its home may want it back.
bool CachingManagedAllocator::needs_fence(const Block& block, const Pool& pool) const {
  const bool has_stream = pool.key.facade == Facade::kDevice;
  auto is_another = [&](const DeviceStream& user) {
    return !has_stream || user != pool.key.device_stream();
  };
  const StreamKey& key = pools_.at(block.pool).key;
  if (key.facade == Facade::kDevice && is_another(key.device_stream())) return true;
  const BlockExtras* extras = pools_.extras(&block);
  if (extras != nullptr && std::any_of(extras->uses.begin(), extras->uses.end(), is_another)) {
    return true;
  }
  return has_stream && pool.index != pools_.home_of(block);
}

void CachingManagedAllocator::fence_and_give_back(Block* block) {
  PoolIndex target = 0;
  std::vector<DeviceStream> streams;
  bool wait = false;
  {
    std::lock_guard lock(lock_);
    if (is_capturing()) {
      // An event on a captured stream would become part of the graph. With the lock, so that the
      // capture's end does not miss it.
      fence_later(block);
      return;
    }
    target = pool_for(*block);
    const Pool& pool = pools_.at(target);
    streams = streams_to_wait_for(*block, pool);
    wait = !streams.empty();
    // A guest of a device pool may be used by its stream at once, by its home only when that stream
    // is through.
    if (target != pools_.home_of(*block) && pool.key.facade == Facade::kDevice) {
      streams.push_back(pool.key.device_stream());
    }
  }
  std::vector<Fence> fences;
  const bool done = record_fences(streams, &fences);
  {
    std::lock_guard lock(lock_);
    if (!done) {
      release_events(&fences);
      fence_later(block);
      return;
    }
    block->pool = target;
    pools_.drop_extras(block);
    statistics_.fences += fences.size();
    wait = wait && !fences.empty();
    if (wait) {
      try {
        waiting_.add(block, fences);
      } catch (const std::bad_alloc&) {
        release_events(&fences);
        throw;
      }
      block->set(BlockState::kFenced);
      count_fenced(*block, 1);
    } else {
      note_free_completed(*block);
      if (!fences.empty()) pools_.make_extras(block).fences = std::move(fences);
    }
  }
  if (!wait) give_back_plain(block);
}

// With the lock: a block whose streams cannot be told to say when they are done with it, since some
// stream is being captured.
void CachingManagedAllocator::fence_later(Block* block) {
  block->set(BlockState::kFenced);
  count_fenced(*block, 1);
  unfenced_.push_back(block);
  has_unfenced_ = true;
}

// Of the work that these streams have so far. False: of some it cannot be had now, since a stream
// is being captured.
bool CachingManagedAllocator::record_fences(const std::vector<DeviceStream>& streams,
                                            std::vector<Fence>* fences) {
  for (const DeviceStream& use : streams) {
    if (!use.can_be_named()) continue;
    bool is_captured = false;
    const RuntimeStatus status = runtime_.is_capturing(use.device, use.handle, &is_captured);
    if (is_captured || status.error == RuntimeError::kCapture) return false;
  }
  for (const DeviceStream& use : streams) {
    if (use.is_gone() && is_through_since(use)) continue;
    RuntimeStatus status{RuntimeError::kInvalidValue, 0, "another thread's stream", "record_event"};
    EventHandle event = nullptr;
    if (use.can_be_named()) event = events_.record(use, &status);
    if (event != nullptr) {
      fences->push_back({use, event});
    } else if (status.error != RuntimeError::kNotUsable && !wait_for_device(use.device)) {
      // A stream that is gone or refuses an event: the whole device stands for it.
      return false;
    }
  }
  return true;
}

// False: its work may go on.
bool CachingManagedAllocator::wait_for_device(int device) const {
  const std::uint64_t gone_before = forgotten_streams_.load(std::memory_order_relaxed);
  if (!is_through(runtime_.synchronize_device(device))) return false;
  std::atomic<std::uint64_t>& over = gone_and_over_[static_cast<std::size_t>(device)];
  std::uint64_t known = over.load(std::memory_order_relaxed);
  while (known < gone_before && !over.compare_exchange_weak(known, gone_before)) {
  }
  return true;
}

// Whether the device was waited for after this stream was forgotten.
bool CachingManagedAllocator::is_through_since(const DeviceStream& gone) const {
  return gone.thread - DeviceStream::kFirstGone <
         gone_and_over_[static_cast<std::size_t>(gone.device)].load(std::memory_order_relaxed);
}

bool CachingManagedAllocator::is_over(const Fence& fence) const {
  const RuntimeError error = runtime_.query_event(fence.stream.device, fence.event).error;
  return error != RuntimeError::kNotReady && error != RuntimeError::kCapture;
}

bool CachingManagedAllocator::fences_done(const std::vector<Fence>& fences) {
  return std::all_of(fences.begin(), fences.end(),
                     [&](const Fence& fence) { return is_over(fence); });
}

void CachingManagedAllocator::release_events(std::vector<Fence>* fences) {
  for (const Fence& fence : *fences) events_.release(fence.stream.device, fence.event);
  fences->clear();
}

void CachingManagedAllocator::drain_finished_fences() {
  if ((waiting_.empty() && !has_unfenced_.load(std::memory_order_relaxed)) || is_capturing()) {
    return;
  }
  drain_fences(false);
}

// Of blocks given back while a stream was captured, of which some may be still.
void CachingManagedAllocator::fence_after_capture() {
  std::vector<Block*> blocks;
  {
    std::lock_guard lock(lock_);
    if (is_capturing()) return;
    blocks.swap(unfenced_);
    has_unfenced_ = false;
  }
  while (!blocks.empty()) {
    Block* block = blocks.back();
    blocks.pop_back();
    {
      std::lock_guard lock(lock_);
      count_fenced(*block, -1);
      block->set(BlockState::kReleasing);
    }
    try {
      fence_and_give_back(block);
    } catch (const std::bad_alloc&) {
      log_lost_block();
    }
  }
}

// With the lock: for the observer, a block whose free did not come at once.
void CachingManagedAllocator::note_free_completed(const Block& block) {
  const StreamKey& key = pools_.at(block.pool).key;
  if (observer_ != nullptr && key.facade == Facade::kDevice) {
    observer_->free_completed(key, block.address(), block.requested_bytes());
  }
}

// For a request that would fail otherwise.
void CachingManagedAllocator::wait_for_fences(ServiceStatistics* service) {
  {
    std::lock_guard lock(lock_);
    ++service->fence_waits;
  }
  drain_fences(true);
}

// One thread at a time: another that needs memory must find what this one looks at.
void CachingManagedAllocator::drain_fences(bool wait) {
  std::unique_lock one_at_a_time(fence_mutex_, std::defer_lock);
  if (wait) {
    one_at_a_time.lock();
    std::vector<Fence> newest;
    {
      std::lock_guard lock(lock_);
      newest = waiting_.newest();
    }
    for (const Fence& fence : newest) {
      runtime_.synchronize_event(fence.stream.device, fence.event);
    }
  } else if (!one_at_a_time.try_lock()) {
    return;
  }
  if (has_unfenced_.load(std::memory_order_relaxed)) fence_after_capture();
  // Nobody else takes fences out; new ones are added behind those that are looked at here.
  constexpr std::size_t kLookedAt = 16;
  std::vector<Block*> ready;
  for (bool more = true; more;) {
    std::vector<Fence> oldest;
    {
      std::lock_guard lock(lock_);
      oldest = waiting_.oldest(kLookedAt);
    }
    std::vector<Fence> over;
    more = false;
    for (std::size_t i = 0; i < oldest.size();) {
      const DeviceStream stream = oldest[i].stream;
      std::size_t end = i;
      while (end < oldest.size() && oldest[end].stream == stream) ++end;
      const bool may_have_more = end - i == kLookedAt;
      for (; i < end; ++i) {
        if (!is_over(oldest[i])) {
          if (!wait) break;
          // Of another stream that had this handle before.
          const RuntimeStatus status = runtime_.synchronize_event(stream.device, oldest[i].event);
          if (!is_through(status) && !wait_for_device(stream.device)) break;
        }
        over.push_back(oldest[i]);
      }
      more |= i == end && may_have_more;
      i = end;
    }
    std::lock_guard lock(lock_);
    for (const Fence& fence : over) {
      events_.release(fence.stream.device, fence.event);
      Block* block = waiting_.take_oldest(fence.stream);
      if (block == nullptr) continue;
      count_fenced(*block, -1);
      note_free_completed(*block);
      block->set(BlockState::kReleasing);
      ready.push_back(block);
    }
  }
  give_back(std::move(ready));
}

void CachingManagedAllocator::release_cached() {
  if (in_forked_child() || is_capturing()) return;
  reclaim_all();
  {
    std::lock_guard lock(lock_);
    for (auto& facade : statistics_.service) {
      for (ServiceStatistics& device : facade) ++device.fence_waits;
    }
  }
  drain_fences(true);
  release_pages(SIZE_MAX);
}

void CachingManagedAllocator::release_cached_of(Facade facade) {
  release_cached_where([&](const Pool& pool) { return pool.key.facade == facade; });
}

void CachingManagedAllocator::release_cached_of(int device, std::uint64_t private_pool) {
  release_cached_where([&](const Pool& pool) {
    return pool.key.device == device && pool.key.private_pool == private_pool;
  });
}

// `wanted` is called with the lock.
void CachingManagedAllocator::release_cached_where(const std::function<bool(const Pool&)>& wanted) {
  if (in_forked_child() || is_capturing()) return;
  reclaim_all();
  drain_fences(true);
  release_pages_of([&](const Pool& pool) { return wanted(pool) && may_release(pool); }, SIZE_MAX);
}

// Wholly free pages, at most about `most_bytes`, back to their spans, empty spans back to the
// driver. Pages leave the pools before the devices are waited for, so that nothing freed meanwhile
// goes back with work pending. Device pages of spans that stay in use are discarded, where the
// device can, and pages of ordinary memory dropped, so that they count as untouched. One thread at
// a time: another that needs memory must find what is on its way back.
void CachingManagedAllocator::release_pages(std::size_t most_bytes) {
  release_pages_of([this](const Pool& pool) { return may_release(pool); }, most_bytes);
}

// `wanted` is called with the lock.
void CachingManagedAllocator::release_pages_of(const std::function<bool(const Pool&)>& wanted,
                                               std::size_t most_bytes) {
  std::lock_guard one_at_a_time(release_mutex_);
  reclaim_all();
  {
    std::lock_guard arenas(arena_mutex_);
    std::vector<std::shared_ptr<SmallArena>> all;
    {
      std::lock_guard lock(lock_);
      for (std::size_t stream = 0; stream < arenas_.size(); ++stream) {
        const Pool& pool = pools_.at(static_cast<PoolIndex>(stream * kPoolsPerStream));
        if (arenas_[stream].arena != nullptr && wanted(pool)) {
          all.push_back(arenas_[stream].arena);
        }
      }
    }
    for (const auto& arena : all) arena->purge();
  }
  std::vector<BlockPools::Pages> runs;
  std::vector<Fence> fences;
  std::set<int> devices;
  // Blocks behind fences go all or not at all: one that stays must keep its fence.
  const bool all = most_bytes == SIZE_MAX;
  {
    std::lock_guard lock(lock_);
    runs.swap(leaving_pages_);
    devices.swap(leaving_page_users_);
    for (const auto& pages : runs) devices.insert(pages.span->device);
    for (const auto& pool : pools_.pools()) {
      if (!wanted(*pool)) continue;
      for (RunBlock* guest : all ? pools_.fenced_guests(*pool) : std::vector<RunBlock*>{}) {
        BlockExtras* extras = pools_.extras(guest);
        fences.insert(fences.end(), extras->fences.begin(), extras->fences.end());
        pools_.drop_extras(guest);
        guest->plain = true;
      }
      pools_.release_free_pages(*pool, &most_bytes,
                                [&](const BlockPools::Pages& pages, const Pool& home) {
                                  runs.push_back(pages);
                                  devices.insert(pages.span->device);
                                  if (pool->key.facade == Facade::kDevice)
                                    devices.insert(pool->key.device);
                                  remove_from_pool(home, pages.base, pages.size_bytes);
                                });
    }
  }
  const bool are_idle = std::all_of(devices.begin(), devices.end(),
                                    [&](int device) { return wait_for_device(device); });
  release_events(&fences);
  std::vector<std::unique_ptr<Span>> empty;
  {
    std::lock_guard lock(lock_);
    if (!are_idle) {
      // They are nobody's until the devices can be waited for.
      leaving_pages_.insert(leaving_pages_.end(), runs.begin(), runs.end());
      leaving_page_users_.insert(devices.begin(), devices.end());
      return;
    }
    for (const auto& run : runs) spans_.give_back(run.span, run.base, run.size_bytes);
    // Of streams, graphs and users' pools that are gone nothing is to stay but their numbers.
    for (const auto& pool : pools_.pools()) {
      if (pool->key.private_pool == 0 || !may_release(*pool)) continue;
      pool->own.drop_empty_tables();
      pool->guests.drop_empty_tables();
    }
    empty = spans_.remove_empty();
    for (const auto& span : empty) {
      ledger_.remove_span(span->base);
      statistics_.span_bytes.decrease(span->size_bytes);
      statistics_.touched_bytes.decrease(span->touched_bytes);
    }
  }
  free_spans(std::move(empty));
  discard_free_pages();
}

// Free pages whose span stays: their contents are dropped, and the budget has them again.
// With release_mutex_, after the devices were waited for.
void CachingManagedAllocator::discard_free_pages() {
  std::vector<SpanStore::Run> runs;
  {
    std::lock_guard lock(lock_);
    for (const auto& span : spans_.spans()) {
      const auto& can = devices_[static_cast<std::size_t>(span->device)].capabilities;
      // Managed pages of the host stay charged while their span lives, whatever is in them.
      if (!span->ordinary && (span->facade != Facade::kDevice || !can.discard)) continue;
      std::vector<SpanStore::Run> of_span = spans_.take_touched(span.get());
      runs.insert(runs.end(), of_span.begin(), of_span.end());
    }
  }
  for (const SpanStore::Run& run : runs) {
    // A driver discards nothing of ordinary memory.
    const bool ordinary = run.span->ordinary;
    const int device = run.span->device;
    const RuntimeStatus status = ordinary ? drop_ordinary(run.base(), run.size_bytes)
                                          : sender_.discard(device, run.base(), run.size_bytes);
    if (!status.ok()) {
      trace_.call_failed(trace_.now(), device, run.base(), run.size_bytes, status);
    } else if (trace_.enabled()) {
      trace_.discarded(trace_.now(), device, run.base(), run.size_bytes,
                       ordinary ? nullptr : sender_.lane(device));
    }
    std::lock_guard lock(lock_);
    if (status.ok()) {
      ledger_.set(run.base(), run.size_bytes, Place::nowhere());
      spans_.give_back_untouched(run.span, run.base(), run.size_bytes);
      statistics_.touched_bytes.decrease(run.size_bytes);
      statistics_.discarded_bytes += run.size_bytes;
    } else {
      spans_.give_back(run.span, run.base(), run.size_bytes);
    }
  }
}

// With the lock: whether the pool's pages may serve others.
bool CachingManagedAllocator::may_release(const Pool& pool) const {
  if (pool.key.private_pool == 0) return true;
  return std::none_of(private_pools_.begin(), private_pools_.end(), [&](const PrivatePool& other) {
    return other.device == pool.key.device && other.id == pool.key.private_pool;
  });
}

bool CachingManagedAllocator::is_decay_due(Decay::Time now) const {
  std::lock_guard lock(lock_);
  return decay_.is_period_over(now);
}

// Guests that nobody works on any more are free like other blocks.
void CachingManagedAllocator::unfence_guests() {
  std::vector<RunBlock*> guests;
  {
    std::lock_guard lock(lock_);
    for (const auto& pool : pools_.pools()) {
      const std::vector<RunBlock*> fenced = pools_.fenced_guests(*pool);
      guests.insert(guests.end(), fenced.begin(), fenced.end());
    }
  }
  for (RunBlock* guest : guests) {
    std::unique_lock lock(lock_);
    if (!pools_.is_fenced_guest(guest)) continue;
    pools_.take_guest(guest);
    shed_fences(guest, &lock);
    pools_.put(guest, pools_.at(guest->pool));
  }
}

void CachingManagedAllocator::decay(Decay::Time now) {
  if (in_forked_child() || is_capturing()) return;
  std::size_t due = 0;
  const bool is_due = is_decay_due(now);
  if (is_due) unfence_guests();
  {
    // What threads keep is looked at when something may be due: they are stopped for it.
    std::optional<ThreadCaches::Frozen> frozen;
    if (is_due) frozen.emplace(caches_);
    std::lock_guard lock(lock_);
    if (frozen) kept_by_threads_bytes_ = caches_.cached_bytes();
    std::size_t free_bytes = kept_by_threads_bytes_;
    for (const auto& pool : pools_.pools()) {
      if (!may_release(*pool)) continue;
      free_bytes += pool->own.free_bytes() + pool->guests.free_bytes();
      for (const RunBlock* fenced : pools_.fenced_guests(*pool)) free_bytes -= fenced->size_bytes();
    }
    due = decay_.due(now, free_bytes);
  }
  // To the nearest page, or the last one would stay for ever.
  due = (due + kPageBytes / 2) & ~(kPageBytes - 1);
  if (due != 0) release_pages(due);
}

// On the longer ways through the allocator, which steady programs seldom take.
void CachingManagedAllocator::decay_now_and_then() {
  constexpr unsigned kEvery = 64;
  if (!decay_.enabled() ||
      long_ways_.fetch_add(1, std::memory_order_relaxed) % kEvery != kEvery - 1)
    return;
  try {
    decay(std::chrono::steady_clock::now());
  } catch (const std::bad_alloc&) {
    // Without memory for lists of what is to go, it stays.
  }
}

// ---- streams that go, private pools

void CachingManagedAllocator::forget_stream(int device, StreamHandle stream) {
  // While it can still be named.
  fence_after_capture();
  const DeviceStream gone = DeviceStream::named(device, stream);
  std::vector<Block*> blocks;
  bool is_known = false;
  bool has_private = false;
  {
    ThreadCaches::Frozen frozen(caches_);
    std::lock_guard lock(lock_);
    for (const auto& pool : pools_.pools()) {
      has_private |= pool->key.facade == Facade::kDevice && pool->key.device_stream() == gone &&
                     pool->key.private_pool != 0;
    }
    const DeviceStream nameless{
        device, stream,
        DeviceStream::kFirstGone + forgotten_streams_.fetch_add(1, std::memory_order_relaxed)};
    pools_.each_extras([&](BlockExtras& extras) {
      std::replace(extras.uses.begin(), extras.uses.end(), gone, nameless);
      if (extras.mover == gone) extras.mover = nameless;
    });
    const StreamKey key{Facade::kDevice, device, stream, 0, gone.thread};
    if (auto pools = pools_.forget(key, nameless.thread)) {
      is_known = true;
      caches_.close(*pools, &blocks);
    }
  }
  give_back(std::move(blocks));
  if (is_known || has_private) trace_.stream_gone(trace_.now(), device, stream);
  if (!has_private) return;
  // What is free in private pools stays theirs.
  if (is_capturing() || !wait_for_device(device)) {
    throw std::runtime_error(
        fmt::format("uvmalloc: device {} cannot be waited for, and private pools hold memory that "
                    "the stream may still work on",
                    device));
  }
  std::lock_guard lock(lock_);
  for (PoolIndex first = 0; first < pools_.pools().size(); first += kPoolsPerStream) {
    Pool& pool = pools_.at(first);
    if (pool.key.facade == Facade::kDevice && pool.key.device_stream() == gone) {
      pool.stream_is_over = true;
    }
  }
}

// On a thread that ends: what its per-thread streams had is for the next thread's.
void CachingManagedAllocator::note_thread_end(const std::vector<PoolIndex>& streams) {
  std::lock_guard lock(lock_);
  for (PoolIndex first : streams) {
    const StreamKey& key = pools_.at(first).key;
    const bool is_own = key.thread != 0 && key.thread == this_thread_number();
    if (is_own && key.private_pool == 0) pools_of_ended_threads_.push_back(first);
  }
}

// Later work of the calling thread's stream starts after the work so far of all blocking streams of
// the device, which the legacy default stream waits for: that of per-thread streams which nobody
// can name any more is among it. Not by waiting for the device, which would invalidate captures
// that nobody told of. False: it cannot be had now, since one of them is being captured.
bool CachingManagedAllocator::order_after_blocking_streams(const DeviceStream& stream) {
  const DeviceStream legacy{stream.device, nullptr, 0};
  return events_.may_wait(legacy) && events_.may_wait(stream) && events_.order(stream, legacy);
}

// Of a stream that has no pools yet: those of a thread that has ended.
void CachingManagedAllocator::take_over_pools(const StreamKey& key) {
  PoolIndex first = 0;
  {
    std::lock_guard lock(lock_);
    auto found =
        std::find_if(pools_of_ended_threads_.begin(), pools_of_ended_threads_.end(),
                     [&](PoolIndex pool) { return pools_.at(pool).key.device == key.device; });
    if (found == pools_of_ended_threads_.end() || pools_.has_pools_of(key)) return;
    first = *found;
    pools_of_ended_threads_.erase(found);
  }
  const bool is_ordered = !is_capturing() && order_after_blocking_streams(key.device_stream());
  std::lock_guard lock(lock_);
  if (is_ordered) {
    pools_.rename(first, key);
  } else {
    pools_of_ended_threads_.push_back(first);
  }
}

CachingManagedAllocator::Routed CachingManagedAllocator::private_pool_for(int device,
                                                                          StreamHandle stream) {
  struct Candidate {
    Routed to;
    PrivatePool::Scope scope;
  };
  std::vector<Candidate> candidates;
  {
    std::lock_guard lock(lock_);
    for (const PrivatePool& pool : private_pools_) {
      if (pool.device != device) continue;
      for (const auto& scope : pool.open) {
        candidates.push_back({{pool.id, pool.whole_pages}, scope});
      }
    }
  }
  std::sort(candidates.begin(), candidates.end(), [](const auto& left, const auto& right) {
    return left.scope.opened > right.scope.opened;
  });
  // A filter may ask the driver.
  for (const Candidate& candidate : candidates) {
    if ((*candidate.scope.routed)(stream)) return candidate.to;
  }
  return {};
}

// With the lock. nullptr: there is no such pool.
CachingManagedAllocator::PrivatePool* CachingManagedAllocator::find_private_pool(int device,
                                                                                 std::uint64_t id) {
  for (PrivatePool& pool : private_pools_) {
    if (pool.device == device && pool.id == id) return &pool;
  }
  return nullptr;
}

// With the lock: whether replays of a graph use memory of these pools.
bool CachingManagedAllocator::is_captured(const StreamKey& key) const {
  return std::any_of(private_pools_.begin(), private_pools_.end(), [&](const PrivatePool& pool) {
    return pool.captured && pool.device == key.device && pool.id == key.private_pool;
  });
}

// With the lock: finds it or makes it.
CachingManagedAllocator::PrivatePool& CachingManagedAllocator::make_private_pool(int device,
                                                                                 std::uint64_t id) {
  if (id == 0) throw std::invalid_argument("a private pool's id is 0; accepted: any other number");
  if (device < 0 || device >= runtime_.device_count()) {
    throw std::invalid_argument(
        fmt::format("device {} does not exist; there are {}", device, runtime_.device_count()));
  }
  if (PrivatePool* found = find_private_pool(device, id)) return *found;
  return private_pools_.emplace_back(PrivatePool{device, id, false, 0, {}, false});
}

std::uint64_t CachingManagedAllocator::begin_private_pool(int device, std::uint64_t id,
                                                          StreamFilter routed, bool capturing) {
  std::lock_guard lock(lock_);
  PrivatePool& pool = make_private_pool(device, id);
  ++pool.users;
  pool.open.push_back(
      {std::make_shared<StreamFilter>(std::move(routed)), capturing, ++opened_scopes_});
  pool.captured |= capturing;
  ++routed_;
  capturing_ += capturing;
  return opened_scopes_;
}

void CachingManagedAllocator::retain_private_pool(int device, std::uint64_t id) {
  std::lock_guard lock(lock_);
  ++make_private_pool(device, id).users;
}

std::size_t CachingManagedAllocator::private_pool_users(int device, std::uint64_t id) const {
  std::lock_guard lock(lock_);
  const PrivatePool* pool =
      const_cast<CachingManagedAllocator*>(this)->find_private_pool(device, id);
  return pool != nullptr ? pool->users : 0;
}

bool CachingManagedAllocator::give_whole_pages(int device, std::uint64_t id) {
  std::lock_guard lock(lock_);
  PrivatePool* pool = find_private_pool(device, id);
  if (pool == nullptr) return false;
  pool->whole_pages = true;
  return true;
}

std::vector<CachingManagedAllocator::PrivateBlock> CachingManagedAllocator::private_blocks(
    int device, std::uint64_t id) const {
  auto& caches = const_cast<ThreadCaches&>(caches_);
  ThreadCaches::Frozen frozen(caches);
  std::vector<PrivateBlock> out;
  std::lock_guard lock(lock_);
  for (const auto& span : spans_.spans()) {
    pools_.each_block(*span, [&](const Block& block) {
      const StreamKey& key = pools_.at(block.pool).key;
      if (block.now() != BlockState::kLive || key.private_pool != id || key.device != device) {
        return;
      }
      out.push_back({block.address(), block.size_bytes(), block.requested_bytes()});
    });
  }
  std::sort(out.begin(), out.end(), [](const PrivateBlock& left, const PrivateBlock& right) {
    return left.address < right.address;
  });
  return out;
}

void CachingManagedAllocator::restore_private_pool(int device, std::uint64_t id,
                                                   const std::vector<PrivateBlock>& blocks) {
  if (is_capturing()) throw std::logic_error("a private pool cannot be restored during a capture");
  using Extent = std::pair<void*, std::size_t>;
  std::set<Extent> wanted;
  for (const PrivateBlock& block : blocks) wanted.emplace(block.address, block.size_bytes);
  std::set<Extent> kept;
  for (const PrivateBlock& block : private_blocks(device, id)) {
    if (wanted.contains({block.address, block.size_bytes})) {
      kept.emplace(block.address, block.size_bytes);
    } else {
      free(block.address);
    }
  }
  // What was just freed must be with the pools.
  reclaim_all();
  drain_fences(true);
  for (const PrivateBlock& block : blocks) {
    if (!kept.contains({block.address, block.size_bytes})) restore_block(device, id, block);
  }
}

void CachingManagedAllocator::restore_block(int device, std::uint64_t id,
                                            const PrivateBlock& wanted) {
  RunBlock* block = nullptr;
  StreamKey key;
  Request request{Facade::kDevice,   device, wanted.size_bytes, wanted.requested_bytes, nullptr,
                  PoolClass::kSmall, 0};
  {
    std::lock_guard lock(lock_);
    const Block* there = pools_.find(wanted.address);
    const Pool* pool = there != nullptr ? &pools_.at(there->pool) : nullptr;
    if (pool != nullptr && pool->key.private_pool == id && pool->key.device == device) {
      block = pools_.take_at(static_cast<char*>(wanted.address), wanted.size_bytes);
    }
    if (block != nullptr) {
      key = pool->key;
      request.stream = key.stream;
      request.pool_class = pool->pool_class;
      request.pools = first_of(pool->index);
      occupy(request, block);
    }
  }
  if (block == nullptr) {
    throw std::invalid_argument(
        fmt::format("{} at {} cannot be had again: the memory is not private pool {}'s, or it is "
                    "in use",
                    format_size(wanted.size_bytes), wanted.address, id));
  }
  if (ThreadCache* cache = caches_.mine()) {
    cache->lock.enter();
    open_to_count(cache, key, request.pools);
    cache->lock.leave();
  }
  count_allocation(request, *block, true);
}

bool CachingManagedAllocator::end_private_pool(int device, std::uint64_t id, std::uint64_t scope) {
  {
    std::lock_guard lock(lock_);
    PrivatePool* found = find_private_pool(device, id);
    if (found == nullptr || found->open.empty()) return false;
    auto ended = found->open.end() - 1;
    while (scope != 0 && ended->opened != scope) {
      if (ended == found->open.begin()) return false;
      --ended;
    }
    capturing_ -= ended->capturing;
    found->open.erase(ended);
    --routed_;
  }
  fence_after_capture();
  return true;
}

bool CachingManagedAllocator::release_private_pool(int device, std::uint64_t id) {
  std::unique_lock lock(lock_);
  PrivatePool* found = find_private_pool(device, id);
  if (found == nullptr) return false;
  if (--found->users != 0) return true;
  // With the last user ends what is still open, as after a capture that has failed.
  const auto open = static_cast<int>(found->open.size());
  const auto capturing = static_cast<int>(std::count_if(
      found->open.begin(), found->open.end(), [](const auto& scope) { return scope.capturing; }));
  private_pools_.erase(private_pools_.begin() + (found - private_pools_.data()));
  routed_ -= open;
  capturing_ -= capturing;
  lock.unlock();
  fence_after_capture();
  return true;
}

void CachingManagedAllocator::free_spans(std::vector<std::unique_ptr<Span>> spans) {
  for (const auto& span : spans) {
    unpoison(span->base, span->size_bytes);
    const auto begin = std::chrono::steady_clock::now();
    const RuntimeStatus status = give_back_memory(*span);
    const auto taken = std::chrono::steady_clock::now() - begin;
    {
      std::lock_guard lock(lock_);
      statistics_
          .service[static_cast<std::size_t>(span->facade)][static_cast<std::size_t>(span->device)]
          .span_frees.add(taken);
    }
    if (!status.ok() && status.error != RuntimeError::kNotUsable) {
      log_once(LogLevel::kWarning, status.text(),
               fmt::format("{} could not be given back to the driver: {}",
                           format_size(span->size_bytes), status.text()));
    }
  }
}

// ---- uses and moves

// With the lock.
void CachingManagedAllocator::add_use(Block* block, DeviceStream use) {
  const StreamKey& key = pools_.at(block->pool).key;
  if (key.facade == Facade::kDevice && use == key.device_stream()) return;
  std::vector<DeviceStream>& uses = pools_.make_extras(block).uses;
  if (std::find(uses.begin(), uses.end(), use) == uses.end()) uses.push_back(use);
}

bool CachingManagedAllocator::record_use(const void* address, int device, StreamHandle stream) {
  return record_use(address, DeviceStream::named(device, stream));
}

bool CachingManagedAllocator::record_use(const void* address, const DeviceStream& stream) {
  std::unique_lock lock(lock_);
  Block* block = pools_.find(address);
  if (!is_block_live(block)) return false;
  add_use(block, stream);
  const TraceTime at = trace_.now();
  const void* base = block->address();
  lock.unlock();
  trace_.used(at, base, stream.device, stream.handle);
  return true;
}

bool CachingManagedAllocator::record_use_of_all(const void* address, int device) {
  std::lock_guard lock(lock_);
  Block* block = pools_.find(address);
  if (!is_block_live(block)) return false;
  for (PoolIndex first = 0; first < pools_.pools().size(); first += kPoolsPerStream) {
    const Pool& pool = pools_.at(first);
    if (pool.key.facade != Facade::kDevice || pool.key.device != device || pool.stream_is_over) {
      continue;
    }
    const DeviceStream stream = pool.key.device_stream();
    if (!stream.is_gone() || !is_through_since(stream)) add_use(block, stream);
  }
  return true;
}

std::vector<DeviceStream> CachingManagedAllocator::uses_of(const void* address) const {
  std::lock_guard lock(lock_);
  const Block* block = pools_.find(address);
  return is_block_live(block) ? users_of(*block) : std::vector<DeviceStream>();
}

bool CachingManagedAllocator::mark_exported(const void* address) {
  std::lock_guard lock(lock_);
  Block* block = pools_.find(address);
  if (!is_block_live(block)) return false;
  block->exported = true;
  block->plain = false;
  return true;
}

void CachingManagedAllocator::mark_live_exported() {
  ThreadCaches::Frozen frozen(caches_);
  std::lock_guard lock(lock_);
  for (const auto& span : spans_.spans()) {
    pools_.each_block(*span, [&](const Block& block) {
      // Small ones are never shared.
      if (block.kind == BlockKind::kSmall || block.now() != BlockState::kLive) return;
      Block* live = pools_.block_at(block.address());
      live->exported = true;
      live->plain = false;
    });
  }
}

void CachingManagedAllocator::wait_for_uses(const void* address) {
  for (const DeviceStream& user : uses_of(address)) {
    const RuntimeStatus status = user.can_be_named()
                                     ? runtime_.synchronize_stream(user.device, user.handle)
                                     : runtime_.synchronize_device(user.device);
    if (is_through(status)) continue;
    throw std::runtime_error(
        fmt::format("uvmalloc: the work of a stream of device {} on {} cannot be waited for: {}",
                    user.device, address, status.text()));
  }
}

// With the lock: the record of a move, attached to the block; nullptr: the block has as many as it
// can have.
MovedStorage* CachingManagedAllocator::record_for(Block* block, const Move& move) {
  if (!move.held) {
    IndirectStorage* same = block->real.indirect;
    while (same != nullptr && (same->held || same->location != move.destination)) {
      same = same->next;
    }
    if (same != nullptr) {
      auto* moved = static_cast<MovedStorage*>(same);  // the block's own one is held
      moved->stream = move.stream;
      return moved;
    }
  }
  if (block->real.references == RealStorage::kMostReferences) return nullptr;
  MovedStorage* record = records_.make({});
  record->size_bytes = block->requested_bytes();
  record->location = move.destination;
  record->stream = move.stream;
  record->held = move.held;
  record->real = &block->real;
  block->real.attach(record);
  return record;
}

// With the lock: a detached record waits for the next move.
void CachingManagedAllocator::drop_record(MovedStorage* record) {
  record->real = nullptr;
  records_.drop(record);
}

MovedStorage* CachingManagedAllocator::move(void* address, const Move& move) {
  if (!move.destination.is_device()) {
    // The producer counts as a user: it is waited for with the others, each once, now or when the
    // block is freed.
    if (!record_use(address, move.stream_device, move.stream)) return nullptr;
    if (move.wait) wait_for_uses(address);
  }
  MovedStorage* record = nullptr;
  TraceTime at = 0;
  TraceBlock moved;
  HintPlan plan;
  int device = move.stream_device;
  DeviceStream producer;
  {
    std::lock_guard lock(lock_);
    Block* block = pools_.find(address);
    if (!is_block_live(block)) return nullptr;
    record = record_for(block, move);
    if (record == nullptr) return nullptr;
    block->plain = false;
    at = trace_.now();
    const std::size_t requested_bytes = block->requested_bytes();
    const bool whole = move.size_bytes == 0 || move.size_bytes >= requested_bytes;
    // The block's own record outlives the others and tells, after the free, where the pages are.
    if (whole) block->use.location = move.destination;
    moved.address = block->address();
    moved.requested_bytes = whole ? requested_bytes : move.size_bytes;
    if (move.destination.is_device()) {
      const DeviceStream stream = DeviceStream::named(move.destination.index, move.stream);
      BlockExtras& extras = pools_.make_extras(block);
      if (move.source.is_device()) {
        // Who had it there: the stream that it was moved for, or the one that it was allocated for.
        const StreamKey& key = pools_.at(block->pool).key;
        producer = extras.mover.exists() ? extras.mover : key.device_stream();
        if (producer.device != move.source.index) producer = {};
      }
      // A part does not take the rest along.
      if (whole) extras.mover = stream;
      add_use(block, stream);
    }
    if (move.destination.is_host()) {
      if (BlockExtras* extras = pools_.extras(block)) extras->left_host = false;
    }
    MoveStatistics& moves = statistics_.moves;
    std::uint64_t& direction = !move.destination.is_device() ? moves.device_to_host
                               : move.source.is_device()     ? moves.device_to_device
                                                             : moves.host_to_device;
    ++direction;
    moves.bytes += moved.requested_bytes;
    bool whole_segments = whole && block->kind == BlockKind::kWhole;
    plan = planner_.plan_move(
        whole ? block->address() : address, whole ? block->size_bytes() : move.size_bytes,
        whole_segments ? pools_.placement_of(*block) : nullptr, move.destination);
  }
  trace_.moved(at, moved.address, moved.requested_bytes, move.source, move.destination,
               move.stream);
  DeviceStream consumer;
  if (move.destination.is_device()) {
    consumer = DeviceStream::named(move.stream_device, move.stream);
  } else {
    // The pages must not leave before the stream is done with them.
    if (!move.wait) producer = DeviceStream::named(move.stream_device, move.stream);
  }
  send(plan, device, producer, consumer);
  return record;
}

bool CachingManagedAllocator::prefetch(const void* address, std::size_t size_bytes,
                                       Place destination, int stream_device, StreamHandle stream) {
  HintPlan plan;
  {
    std::lock_guard lock(lock_);
    const Block* block = pools_.find(address);
    if (!is_block_live(block) || size_bytes == 0 ||
        static_cast<const char*>(address) + size_bytes > block->end()) {
      return false;
    }
    const std::uintptr_t begin = address_of(address) & ~(kPageBytes - 1);
    const std::uintptr_t end = round_up(address_of(address) + size_bytes, kPageBytes);
    plan = planner_.plan_move(reinterpret_cast<void*>(begin), end - begin, nullptr, destination);
  }
  const DeviceStream given = DeviceStream::named(stream_device, stream);
  const bool to_device = destination.is_device();
  send(plan, stream_device, to_device ? DeviceStream{} : given, to_device ? given : DeviceStream{});
  return true;
}

bool CachingManagedAllocator::advise(const void* address, const WantedPlacement& wanted) {
  HintPlan plan;
  int device = 0;
  {
    std::lock_guard lock(lock_);
    const Block* block = pools_.find(address);
    if (!is_block_live(block) || block->kind == BlockKind::kSmall) return false;
    device = pools_.at(block->pool).key.device;
    const std::uintptr_t begin = round_up(address_of(block->address()), kPageBytes);
    const std::uintptr_t end = address_of(block->end()) & ~(kPageBytes - 1);
    if (begin >= end) return false;
    // Pages that blocks share are advised with their span alone, and nothing is kept of this.
    SegmentPlacement* placement =
        block->kind == BlockKind::kWhole ? pools_.placement_of(*block) : nullptr;
    plan = planner_.plan_advice(reinterpret_cast<void*>(begin), end - begin, placement, wanted);
  }
  send(plan, device);
  return true;
}

std::map<Place, std::size_t> CachingManagedAllocator::residency(const void* address,
                                                                std::size_t size_bytes) const {
  std::map<Place, std::size_t> bytes;
  std::lock_guard lock(lock_);
  const Block* block = pools_.find(address);
  if (size_bytes == 0 || block == nullptr) return bytes;
  size_bytes = std::min(size_bytes,
                        static_cast<std::size_t>(block->end() - static_cast<const char*>(address)));
  std::vector<Place> places{Place::nowhere(), Place::host()};
  for (int device = 0; device < runtime_.device_count(); ++device) {
    places.push_back(Place::device(device));
  }
  for (Place place : places) {
    if (std::size_t at = ledger_.bytes_at(address, size_bytes, place); at != 0) bytes[place] = at;
  }
  return bytes;
}

void CachingManagedAllocator::release(MovedStorage* record) noexcept {
  void* address = nullptr;
  {
    std::lock_guard lock(lock_);
    RealStorage* real = record->real;
    if (real == nullptr) return;
    if (real->references > 1) {
      real->detach(record);
      drop_record(record);
      return;
    }
    address = real->address;
  }
  free(address);
}

// ---- knowledge

std::optional<BlockDescription> CachingManagedAllocator::find(const void* address) const {
  std::lock_guard lock(lock_);
  const Block* block = pools_.find(address);
  if (block == nullptr) return std::nullopt;
  const StreamKey& key = pools_.at(block->pool).key;
  BlockDescription out;
  out.base = block->address();
  out.size_bytes = block->size_bytes();
  out.facade = key.facade;
  out.device = key.device;
  out.stream = key.stream;
  out.private_pool = key.private_pool;
  out.live = block->now() == BlockState::kLive;
  out.movable = block->kind != BlockKind::kSmall && block->size_bytes() >= kWholeBytes;
  if (out.live) {
    out.requested_bytes = block->requested_bytes();
    out.location = block->use.location;
    out.exported = block->exported || is_captured(key);
    out.references = block->real.references;
    out.waits_when_freed = key.facade == Facade::kDevice && !block->plain &&
                           needs_fence(*block, pools_.at(block->pool));
  }
  return out;
}

void CachingManagedAllocator::set_memory_observer(MemoryObserver* observer) {
  std::lock_guard lock(lock_);
  observer_ = observer;
}

void CachingManagedAllocator::set_device_limit(int device, std::size_t most_bytes) {
  std::lock_guard lock(lock_);
  device_limits_.at(static_cast<std::size_t>(device)) = most_bytes;
}

std::size_t CachingManagedAllocator::free_bytes(int device, const MemoryFigures& driver) const {
  const bool integrated = devices_.at(static_cast<std::size_t>(device)).capabilities.integrated;
  std::size_t held_bytes = 0;
  {
    std::lock_guard lock(lock_);
    held_bytes = spans_.touched_bytes();
  }
  return obtainable_bytes(driver, integrated, integrated ? available_host_bytes() : 0,
                          budget_.hard_bytes - std::min(held_bytes, budget_.hard_bytes));
}

// With the lock: whether pools of `key` may get so many bytes of pages, of which so many are
// touched for the first time.
bool CachingManagedAllocator::is_within_limits(const StreamKey& key, std::size_t touched_bytes,
                                               std::size_t pool_bytes) const {
  if (touched_bytes != 0 && spans_.touched_bytes() + touched_bytes > budget_.hard_bytes) {
    return false;
  }
  if (key.facade != Facade::kDevice) return true;
  auto device = static_cast<std::size_t>(key.device);
  const auto& figures = statistics_.classes[static_cast<std::size_t>(key.facade)][device];
  const std::size_t held = figures[kSizeClasses].reserved_bytes.current;
  const std::size_t limit = device_limits_[device];
  return held <= limit && pool_bytes <= limit - held;
}

void CachingManagedAllocator::add_pressure_callback(PressureCallback callback) {
  std::lock_guard lock(lock_);
  pressure_callbacks_.push_back(std::make_shared<PressureCallback>(std::move(callback)));
}

std::vector<std::shared_ptr<CachingManagedAllocator::PressureCallback>>
CachingManagedAllocator::pressure_callbacks() const {
  std::lock_guard lock(lock_);
  return pressure_callbacks_;
}

void CachingManagedAllocator::note_copy(CopyReason reason, std::size_t size_bytes) {
  std::lock_guard lock(lock_);
  MoveStatistics::Copies& copies = statistics_.moves.copies[static_cast<std::size_t>(reason)];
  ++copies.count;
  copies.bytes += size_bytes;
  if (size_bytes >= configuration_.host_threshold_bytes) {
    copies.bytes_at_or_above_threshold += size_bytes;
  }
}

void CachingManagedAllocator::note_left_host(const void* address) {
  std::lock_guard lock(lock_);
  Block* block = pools_.find(address);
  if (!is_block_live(block) || block->plain) return;
  pools_.make_extras(block).left_host = true;
}

void CachingManagedAllocator::note_materialization(std::size_t copied_bytes, bool steal) {
  std::lock_guard lock(lock_);
  if (steal) {
    ++statistics_.materializations.steals;
  } else {
    ++statistics_.materializations.copies;
    statistics_.materializations.bytes += copied_bytes;
  }
}

Statistics CachingManagedAllocator::statistics() const {
  auto& caches = const_cast<ThreadCaches&>(caches_);
  ThreadCaches::Frozen frozen(caches);
  caches.add_up();
  const PeakBook& book = caches.book();
  std::lock_guard lock(lock_);
  Statistics out = statistics_;
  for (Facade facade : {Facade::kHost, Facade::kPinned, Facade::kDevice}) {
    auto at = static_cast<std::size_t>(facade);
    for (std::size_t device = 0; device < devices_.size(); ++device) {
      std::size_t place = place_of(facade, static_cast<int>(device));
      const Tally sum = caches.sum(place);
      for (std::size_t of = 0; of <= Tally::kAll; ++of) {
        ClassStatistics& figures = out.classes[at][device][of];
        const Amounts now = sum.live(of);
        const Amounts& peak = book.peak(place, of);
        const Amounts up = book.increased(place, of, sum);
        const Amounts down = book.decreased(place, of, sum);
        figures.allocations = gauge(now.blocks, peak.blocks, up.blocks, down.blocks);
        figures.allocated_bytes = gauge(now.bytes, peak.bytes, up.bytes, down.bytes);
        figures.requested_bytes = gauge(now.requested_bytes, peak.requested_bytes,
                                        up.requested_bytes, down.requested_bytes);
        figures.active_blocks = with_fenced(figures.allocations, figures.active_blocks);
        figures.active_bytes = with_fenced(figures.allocated_bytes, figures.active_bytes);
        figures.active_requested_bytes =
            with_fenced(figures.requested_bytes, figures.active_requested_bytes);
        if (of != Tally::kAll) {
          figures.cache_hits = sum.hits(of);
          out.cache_hits[at] += sum.hits(of);
        }
      }
      const Amounts total = sum.total(Tally::kAll);
      const Gauge& bytes = out.classes[at][device][Tally::kAll].allocated_bytes;
      out.allocations[at] += static_cast<std::uint64_t>(total.blocks);
      out.facade_bytes[at].current += bytes.current;
      out.facade_bytes[at].peak += bytes.peak;
      out.facade_bytes[at].increased += static_cast<std::uint64_t>(total.bytes);
      out.facade_bytes[at].decreased +=
          static_cast<std::uint64_t>((total - sum.live(Tally::kAll)).bytes);
    }
    out.live_bytes.current += out.facade_bytes[at].current;
    out.live_bytes.increased += out.facade_bytes[at].increased;
    out.live_bytes.decreased += out.facade_bytes[at].decreased;
  }
  out.live_bytes.peak = static_cast<std::uint64_t>(caches.peak_live_bytes());
  out.thread_cached_bytes = caches.cached_bytes();
  for (PoolIndex first = 0; first < pools_.pools().size(); first += kPoolsPerStream) {
    const StreamKey& key = pools_.at(first).key;
    const StreamTally tally = caches.sum_of_stream(first);
    StreamStatistics stream{key.facade,
                            key.device,
                            address_of(key.stream),
                            tally.live_bytes,
                            tally.peak_bytes,
                            tally.blocks,
                            tally.bytes,
                            0,
                            0};
    for (PoolIndex pool = first; pool < first + kPoolsPerStream; ++pool) {
      for (const FreeIndex* index : {&pools_.at(pool).own, &pools_.at(pool).guests}) {
        stream.free_bytes += index->free_bytes();
        if (const RunBlock* largest = index->largest()) {
          stream.largest_free_bytes =
              std::max<std::uint64_t>(stream.largest_free_bytes, largest->size_bytes());
        }
      }
    }
    out.free_bytes += stream.free_bytes;
    out.largest_free_bytes = std::max(out.largest_free_bytes, stream.largest_free_bytes);
    out.streams.push_back(stream);
  }
  out.metadata_bytes = pools_.metadata_bytes() + caches.bytes();
  return out;
}

void CachingManagedAllocator::reset_peaks(Facade facade, int device) {
  auto& classes = figures_of(facade, device);
  ThreadCaches::Frozen frozen(caches_);
  caches_.book().reset_peaks(place_of(facade, device));
  caches_.add_up();
  std::lock_guard lock(lock_);
  for (auto& figures : classes) {
    figures.each_gauge([](Gauge& gauge) { gauge.reset_peak(); });
  }
  if (facade == Facade::kDevice) reset_private_pools(device, &Gauge::reset_peak);
}

void CachingManagedAllocator::reset_totals(Facade facade, int device) {
  auto& classes = figures_of(facade, device);
  ThreadCaches::Frozen frozen(caches_);
  std::size_t place = place_of(facade, device);
  caches_.book().reset_totals(place, caches_.sum(place));
  std::lock_guard lock(lock_);
  for (auto& figures : classes) {
    figures.each_gauge([](Gauge& gauge) { gauge.reset_totals(); });
  }
  statistics_.service[static_cast<std::size_t>(facade)][static_cast<std::size_t>(device)] = {};
  if (facade == Facade::kDevice) reset_private_pools(device, &Gauge::reset_totals);
}

// With the lock.
void CachingManagedAllocator::reset_private_pools(int device, void (Gauge::*reset)()) {
  for (PrivatePoolStatistics& pool : statistics_.private_pools) {
    if (pool.device != device) continue;
    for (Gauge& gauge : pool.reserved_bytes) (gauge.*reset)();
  }
  std::erase_if(statistics_.private_pools, [](const auto& pool) { return pool.is_empty(); });
}

std::vector<SegmentDescription> CachingManagedAllocator::segments() const {
  auto& caches = const_cast<ThreadCaches&>(caches_);
  ThreadCaches::Frozen frozen(caches);
  std::lock_guard lock(lock_);
  std::vector<SegmentDescription> out;
  const char* end = nullptr;
  auto begin = [&](char* base, std::size_t size_bytes, const Pool& home) {
    out.push_back({base,
                   size_bytes,
                   home.key.facade,
                   home.key.device,
                   home.key.stream,
                   home.pool_class,
                   home.key.private_pool,
                   {}});
    end = base;
  };
  auto begin_small = [&](char* base, const Pool& home) { begin(base, kPageBytes, home); };
  for (const auto& span : spans_.spans()) {
    auto add = [&](const Block& block) {
      bool small = block.kind == BlockKind::kSmall;
      bool goes_on = small || (block.kind == BlockKind::kShared && block.address() == end &&
                               static_cast<const RunBlock&>(block).shared.previous != 0);
      if (!goes_on) {
        // The pages of a guest count where they are used.
        const bool lent = block.now() == BlockState::kLive;
        begin(block.address(), 0, pools_.at(lent ? block.pool : pools_.home_of(block)));
      }
      SegmentDescription& segment = out.back();
      // Free small objects are with the arena.
      if (block.address() > end) {
        segment.blocks.push_back(
            {static_cast<std::size_t>(block.address() - end), 0, BlockState::kFree});
      }
      bool in_use = block.now() != BlockState::kFree && block.now() != BlockState::kCached;
      segment.blocks.push_back(
          {block.size_bytes(), in_use ? block.requested_bytes() : 0, block.now()});
      end = block.end();
      if (!small) segment.size_bytes += block.size_bytes();
    };
    pools_.each_block(*span, add, begin_small);
  }
  for (SegmentDescription& segment : out) {
    std::size_t bytes = 0;
    for (const auto& piece : segment.blocks) bytes += piece.size_bytes;
    if (bytes < segment.size_bytes) {
      segment.blocks.push_back({segment.size_bytes - bytes, 0, BlockState::kFree});
    }
  }
  return out;
}

std::string CachingManagedAllocator::start_trace(const std::string& file) {
  std::vector<TraceRecorder::Device> devices;
  for (const auto& device : devices_) devices.push_back({device.name, device.total_bytes});
  // Nobody gets or gives up a block while the live ones are listed.
  ThreadCaches::Frozen frozen(caches_);
  std::lock_guard lock(lock_);
  return trace_.start(file, devices, [&](const TraceRecorder::BlockSink& sink) {
    for (const auto& span : spans_.spans()) {
      pools_.each_block(*span, [&](const Block& block) {
        if (block.now() != BlockState::kLive) return;
        const StreamKey& key = pools_.at(block.pool).key;
        sink({key.facade, key.device, block.address(), block.requested_bytes(), block.size_bytes(),
              key.stream});
      });
    }
  });
}

void CachingManagedAllocator::check_invariants() const {
  auto& caches = const_cast<ThreadCaches&>(caches_);
  ThreadCaches::Frozen frozen(caches);
  std::lock_guard lock(lock_);
  pools_.check_invariants(spans_.spans());
}

// ---- figures

// Without memory for it, the thread's next allocation tries again.
void CachingManagedAllocator::note_peaks(std::size_t place) {
  try {
    ThreadCaches::Frozen frozen(caches_);
    caches_.add_up(place);
  } catch (const std::bad_alloc&) {
    return;
  }
}

void CachingManagedAllocator::count_allocation(const Request& request, Block& block,
                                               bool from_cache) {
  const std::size_t place = place_of(request.facade, request.device);
  if (ThreadCache* cache = caches_.mine()) {
    cache->lock.enter();
    bool within = cache->count_allocated(block, from_cache);
    cache->lock.leave();
    if (!within) note_peaks(place);
    return;
  }
  caches_.count_elsewhere(
      [&](Tally& tally, StreamTally& stream) {
        tally.allocated(size_class_of(block.size_bytes()), block.size_bytes(),
                        block.requested_bytes(), from_cache);
        stream.allocated(block.size_bytes());
      },
      place, request.pools);
}

// With the cache's lock, which an exception leaves: what this thread counts of a stream may be the
// first that it has to do with it. `again`: it is to be found as one used of late.
void CachingManagedAllocator::open_to_count(ThreadCache* cache, const StreamKey& key,
                                            PoolIndex first, bool again) {
  if (!again && cache->is_open(first)) return;
  try {
    cache->open(key, first, place_of(key.facade, key.device));
  } catch (const std::bad_alloc&) {
    cache->lock.leave();
    throw;
  }
}

void CachingManagedAllocator::count_free(const Block& block, const StreamKey& key) {
  if (ThreadCache* cache = caches_.mine()) {
    cache->lock.enter();
    open_to_count(cache, key, first_of(block.pool));
    cache->count_freed(block);
    cache->lock.leave();
    return;
  }
  caches_.count_elsewhere(
      [&](Tally& tally, StreamTally& stream) {
        tally.freed(size_class_of(block.size_bytes()), block.size_bytes(), block.requested_bytes());
        stream.freed(block.size_bytes());
      },
      place_of(key.facade, key.device), block.pool - block.pool % kPoolsPerStream);
}

// With the lock; nullptr: the pool is nobody's own.
PrivatePoolStatistics* CachingManagedAllocator::figures_of_private(const Pool& pool) {
  const StreamKey& key = pool.key;
  if (key.private_pool == 0 || key.private_pool == StreamKey::kForgotten) return nullptr;
  auto& all = statistics_.private_pools;
  auto found = std::find_if(all.begin(), all.end(), [&](const PrivatePoolStatistics& other) {
    return other.device == key.device && other.id == key.private_pool;
  });
  if (found == all.end()) found = all.insert(all.end(), {key.device, key.private_pool, {}});
  return &*found;
}

// With the lock: in the figures of a pool's class, of all classes and of a private pool.
void CachingManagedAllocator::count_pages(const Pool& pool, std::size_t size_bytes,
                                          void (Gauge::*count)(std::uint64_t)) {
  auto& classes = figures_of(pool.key.facade, pool.key.device);
  PrivatePoolStatistics* own = figures_of_private(pool);
  for (std::size_t of : {class_index_of(pool), kSizeClasses}) {
    (classes[of].segments.*count)(size_bytes >> kPageShift);
    (classes[of].reserved_bytes.*count)(size_bytes);
    if (own != nullptr) (own->reserved_bytes[of].*count)(size_bytes);
  }
}

// With the lock: whole pages that a pool has got.
void CachingManagedAllocator::add_to_pool(const Pool& pool, void* base, std::size_t size_bytes) {
  count_pages(pool, size_bytes, &Gauge::increase);
  if (observer_ != nullptr && pool.key.facade == Facade::kDevice) {
    observer_->pages_added(pool.key, base, size_bytes);
  }
}

// With the lock: whole pages that a pool has lost.
void CachingManagedAllocator::remove_from_pool(const Pool& pool, void* base,
                                               std::size_t size_bytes) {
  count_pages(pool, size_bytes, &Gauge::decrease);
  if (observer_ != nullptr && pool.key.facade == Facade::kDevice) {
    observer_->pages_removed(pool.key, base, size_bytes);
  }
}

// With the lock: a guest's pages count where they are used while it is live.
void CachingManagedAllocator::lend_pages(const Block& block, PoolIndex from, PoolIndex to) {
  remove_from_pool(pools_.at(from), block.address(), block.size_bytes());
  add_to_pool(pools_.at(to), block.address(), block.size_bytes());
}

// With the lock: blocks behind fences, in the gauges of active blocks, to which statistics() adds
// the live ones.
void CachingManagedAllocator::count_fenced(const Block& block, std::int64_t sign) {
  const StreamKey& key = pools_.at(block.pool).key;
  auto& classes =
      statistics_
          .classes[static_cast<std::size_t>(key.facade)][static_cast<std::size_t>(key.device)];
  for (std::size_t of :
       {static_cast<std::size_t>(size_class_of(block.size_bytes())), kSizeClasses}) {
    if (sign > 0) {
      classes[of].active_blocks.increase(1);
      classes[of].active_bytes.increase(block.size_bytes());
      classes[of].active_requested_bytes.increase(block.requested_bytes());
    } else {
      classes[of].active_blocks.decrease(1);
      classes[of].active_bytes.decrease(block.size_bytes());
      classes[of].active_requested_bytes.decrease(block.requested_bytes());
    }
  }
}

// ---- fork

bool CachingManagedAllocator::is_used_by_host(const Block& block) const {
  if (block.now() != BlockState::kLive) return false;
  const BlockExtras* extras = block.plain ? nullptr : pools_.extras(&block);
  if (extras != nullptr && extras->left_host) return false;
  if (pools_.at(block.pool).key.facade != Facade::kDevice) return true;
  const IndirectStorage* record = block.real.indirect;
  while (record != nullptr && !record->location.is_host()) record = record->next;
  return record != nullptr;
}

void CachingManagedAllocator::before_fork() {
  if (in_forked_child()) {
    lock_.lock_for_fork();
    return;
  }
  // Nobody is inside an arena or a cache while the process is copied.
  arena_mutex_.lock();
  frozen_.emplace(caches_);
  lock_.lock_for_fork();
  for (const auto& span : spans_.spans()) {
    if (span->ordinary) continue;
    const char* page = nullptr;
    pools_.each_block(*span, [&](const Block& block) {
      if (!is_used_by_host(block)) return;
      if (block.kind != BlockKind::kSmall) {
        fork_snapshot_.add(block.address(), block.requested_bytes());
        return;
      }
      // Small objects: their page as a whole, once.
      char* own = reinterpret_cast<char*>(address_of(block.address()) & ~(kPageBytes - 1));
      if (own != page) fork_snapshot_.add(own, kPageBytes);
      page = own;
    });
  }
  const std::size_t ranks = std::max(configuration_.local_ranks, 1u);
  fork_snapshot_.take({configuration_.fork_limit_bytes,
                       less_reserve(available_host_bytes(), configuration_) / ranks,
                       host_backing_ == HostBacking::kManaged && reach_ordinary_memory(devices_)},
                      &statistics_.forks);
}

void CachingManagedAllocator::after_fork_in_parent() {
  if (in_forked_child()) return lock_.unlock();
  fork_snapshot_.release();
  lock_.unlock();
  frozen_.reset();
  arena_mutex_.unlock();
}

void CachingManagedAllocator::after_fork_in_child() {
  lock_.after_fork_in_child();
  if (in_forked_child()) return lock_.unlock();
  forked_child_ = true;
  caches_.abandon();
  trace_.after_fork_in_child();
  fork_snapshot_.restore();
  lock_.unlock();
  frozen_.reset();
  arena_mutex_.unlock();
}

void* CachingManagedAllocator::allocate_in_child(Facade facade, std::size_t size_bytes) {
  if (facade == Facade::kDevice) {
    throw std::runtime_error(
        "uvmalloc: device memory cannot be used in a forked child; start the process with spawn or "
        "forkserver");
  }
  if (size_bytes == 0) return nullptr;
  void* address = nullptr;
  if (posix_memalign(&address, kGranule, size_bytes) != 0) {
    throw OutOfMemoryError(
        size_bytes, fmt::format("uvmalloc: out of memory: {} asked of malloc in a forked child",
                                format_size(size_bytes)));
  }
  std::lock_guard lock(lock_);
  child_blocks_.insert(address);
  return address;
}

}  // namespace uvm
