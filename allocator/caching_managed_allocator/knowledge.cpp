// Of CachingManagedAllocator: what it tells of blocks and of itself, and what it counts.
#include <uvmalloc/allocator/caching_managed_allocator.hpp>

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include <uvmalloc/allocator/base/machine_memory.hpp>

namespace uvm {

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
    out.location = block->use.location();
    out.exported = block->exported || private_pools_.is_captured(key.device, key.private_pool);
    out.references = block->real.references;
    out.used_by_host = is_used_by_host(*block);
    const BlockExtras* extras = block->plain ? nullptr : pools_.extras(block);
    out.pinned =
        extras != nullptr && extras->pinned ? *extras->pinned : key.facade == Facade::kPinned;
    out.waits_when_freed = key.facade == Facade::kDevice && !block->plain &&
                           fenced_.needs_fence(*block, pools_.at(block->pool));
  }
  return out;
}

void CachingManagedAllocator::set_memory_observer(MemoryObserver* observer) {
  std::lock_guard lock(lock_);
  book_.set_observer(observer);
}

void CachingManagedAllocator::set_device_limit(int device, std::size_t most_bytes) {
  book_.check_device(device);
  std::lock_guard lock(lock_);
  device_limits_[static_cast<std::size_t>(device)] = most_bytes;
}

std::size_t CachingManagedAllocator::free_bytes(int device, const MemoryFigures& driver) const {
  book_.check_device(device);
  const bool integrated = devices_[static_cast<std::size_t>(device)].capabilities.integrated;
  auto left = [](std::size_t limit, std::size_t held) { return limit - std::min(held, limit); };
  MemoryFigures figures = driver;
  std::size_t allowed_bytes = 0;
  {
    std::lock_guard lock(lock_);
    // The driver takes discarded pages for used until somebody needs their place.
    figures.free_bytes =
        std::min(driver.free_bytes + spans_.discarded_bytes(Facade::kDevice, device),
                 std::max(driver.free_bytes,
                          left(driver.total_bytes, spans_.touched_bytes(Facade::kDevice, device))));
    allowed_bytes = std::min(left(budget_.hard_bytes, spans_.touched_bytes()),
                             left(configuration_.device_budget_bytes.value_or(SIZE_MAX),
                                  book_.reserved_bytes(Facade::kDevice, device)));
  }
  return obtainable_bytes(figures, integrated, integrated ? available_host_bytes() : 0,
                          allowed_bytes);
}

std::size_t CachingManagedAllocator::budget_bytes() const {
  std::lock_guard lock(lock_);
  return budget_.hard_bytes;
}

// With the lock.
void CachingManagedAllocator::change_budget_for_conversion(std::size_t size_bytes, bool grows) {
  if (configuration_.budget_bytes) return;
  const std::size_t pages_bytes = round_up(size_bytes, kPageBytes);
  budget_.hard_bytes = grows ? budget_.hard_bytes + pages_bytes : budget_.hard_bytes - pages_bytes;
  book_.set_budget(budget_.hard_bytes);
}

void* CachingManagedAllocator::begin_conversion(int device, std::size_t size_bytes) {
  {
    std::lock_guard lock(lock_);
    change_budget_for_conversion(size_bytes, true);
  }
  try {
    return allocate(Facade::kHost, device, size_bytes);
  } catch (...) {
    std::lock_guard lock(lock_);
    change_budget_for_conversion(size_bytes, false);
    throw;
  }
}

void CachingManagedAllocator::end_conversion(void* address, std::size_t size_bytes, bool done) {
  {
    std::lock_guard lock(lock_);
    if (done) {
      ++book_.figures().conversions.count;
      book_.figures().conversions.bytes += size_bytes;
    } else {
      change_budget_for_conversion(size_bytes, false);
    }
  }
  if (!done) free(address);
}

// With the lock: what all pools of that facade and device may hold.
std::size_t CachingManagedAllocator::limit_of(const StreamKey& key) const {
  return key.facade == Facade::kDevice ? device_limits_[static_cast<std::size_t>(key.device)]
                                       : SIZE_MAX;
}

// With the lock: whether pools of `key` may get so many bytes of pages, of which so many are
// touched for the first time; else what refuses them.
RuntimeStatus CachingManagedAllocator::check_limits(const StreamKey& key, std::size_t touched_bytes,
                                                    std::size_t pool_bytes,
                                                    std::size_t beyond_budget_bytes) const {
  const std::size_t wanted_bytes = spans_.touched_bytes() + touched_bytes;
  if (touched_bytes != 0 && wanted_bytes > budget_.hard_bytes &&
      wanted_bytes - budget_.hard_bytes > beyond_budget_bytes) {
    return kOverBudget;
  }
  const std::size_t limit = limit_of(key);
  if (limit == SIZE_MAX) return {};
  const std::size_t held = book_.reserved_bytes(key.facade, key.device);
  if (held > limit || pool_bytes > limit - held) return kOverDeviceLimit;
  return {};
}

// Whether no free can make room for the request. What a device holds beyond a limit that was
// lowered stays, and may be used again.
bool CachingManagedAllocator::exceeds_limits(const Request& request) const {
  const std::size_t pages_bytes = round_up(request.size_bytes, kPageBytes);
  if (pages_bytes > budget_bytes()) return true;
  std::lock_guard lock(lock_);
  const StreamKey& key = pools_.at(request.pools).key;
  return pages_bytes > std::max(limit_of(key), book_.reserved_bytes(key.facade, key.device));
}

void CachingManagedAllocator::add_pressure_callback(PressureCallback callback) {
  std::lock_guard lock(lock_);
  pressure_callbacks_.push_back(std::make_shared<PressureCallback>(std::move(callback)));
}

// None for a request that frees cannot help.
PressureRounds CachingManagedAllocator::pressure_rounds(const Request& request) {
  PressureRounds::Callbacks callbacks;
  if (!exceeds_limits(request)) {
    std::lock_guard lock(lock_);
    callbacks = pressure_callbacks_;
  }
  return {this, std::move(callbacks), [this] { return block_bytes().freed; }, budget_bytes()};
}

CachingManagedAllocator::BlockBytes CachingManagedAllocator::block_bytes() {
  BlockBytes bytes;
  ThreadCaches::Frozen frozen(caches_);
  for (std::size_t place = 0; place < kFacades * devices_.size(); ++place) {
    const Tally sum = caches_.sum(place);
    const std::int64_t live = sum.live(Tally::kAll).bytes;
    bytes.live += live;
    bytes.freed += sum.total(Tally::kAll).bytes - live;
  }
  return bytes;
}

void CachingManagedAllocator::note_copy(CopyReason reason, std::size_t size_bytes) {
  std::lock_guard lock(lock_);
  MoveStatistics::Copies& copies = book_.figures().moves.copies[static_cast<std::size_t>(reason)];
  ++copies.count;
  copies.bytes += size_bytes;
  if (size_bytes >= configuration_.host_threshold_bytes) {
    copies.bytes_at_or_above_threshold += size_bytes;
  }
}

void CachingManagedAllocator::note_left_host(const void* address) {
  if (in_forked_child()) return;
  std::lock_guard lock(lock_);
  Block* block = pools_.find(address);
  if (!is_block_live(block) || block->plain) return;
  pools_.make_extras(block).left_host = true;
}

void CachingManagedAllocator::note_materialization(std::size_t copied_bytes, bool steal) {
  std::lock_guard lock(lock_);
  if (steal) {
    ++book_.figures().materializations.steals;
  } else {
    ++book_.figures().materializations.copies;
    book_.figures().materializations.bytes += copied_bytes;
  }
}

Statistics CachingManagedAllocator::statistics() const {
  auto& caches = const_cast<ThreadCaches&>(caches_);
  ThreadCaches::Frozen frozen(caches);
  caches.add_up();
  std::lock_guard lock(lock_);
  return book_.all(caches, pools_, spans_);
}

Figures CachingManagedAllocator::figures() const {
  auto& caches = const_cast<ThreadCaches&>(caches_);
  ThreadCaches::Frozen frozen(caches);
  caches.add_up();
  std::lock_guard lock(lock_);
  return figure_store_.read([&](std::size_t place) { return caches.sum(place); });
}

void CachingManagedAllocator::reset_peaks(Facade facade, int device) {
  book_.check_device(device);
  ThreadCaches::Frozen frozen(caches_);
  caches_.book().reset_peaks(book_.place_of(facade, device));
  caches_.add_up();
  std::lock_guard lock(lock_);
  book_.reset_peaks(facade, device);
}

void CachingManagedAllocator::reset_totals(Facade facade, int device) {
  book_.check_device(device);
  ThreadCaches::Frozen frozen(caches_);
  const std::size_t place = book_.place_of(facade, device);
  caches_.book().reset_totals(place, caches_.sum(place));
  std::lock_guard lock(lock_);
  book_.reset_totals(facade, device);
}

std::vector<SegmentDescription> CachingManagedAllocator::segments() const {
  auto& caches = const_cast<ThreadCaches&>(caches_);
  ThreadCaches::Frozen frozen(caches);
  std::lock_guard lock(lock_);
  return describe_segments(spans_, pools_);
}

std::string CachingManagedAllocator::start_trace(const std::string& file) {
  if (in_forked_child()) return fmt::format("trace {}: a forked child cannot be traced", file);
  std::vector<TraceRecorder::Device> devices;
  for (const auto& device : devices_) devices.push_back({device.name, device.total_bytes});
  return trace_.start(file, devices,
                      [&](const TraceRecorder::BlockSink& sink, const TraceRecorder::Begin& begin) {
                        // Nobody gets or gives up a block while the live ones are listed.
                        ThreadCaches::Frozen frozen(caches_);
                        std::lock_guard lock(lock_);
                        for (const auto& span : spans_.spans()) {
                          pools_.each_block(*span, [&](const Block& block) {
                            if (block.now() != BlockState::kLive) return;
                            const StreamKey& key = pools_.at(block.pool).key;
                            sink({key.facade, key.device, block.address(), block.requested_bytes(),
                                  block.size_bytes(), key.stream});
                          });
                        }
                        begin();
                      });
}

void CachingManagedAllocator::check_invariants() const {
  auto& caches = const_cast<ThreadCaches&>(caches_);
  ThreadCaches::Frozen frozen(caches);
  std::lock_guard lock(lock_);
  pools_.check_invariants(spans_.spans());
}

void CachingManagedAllocator::note_peaks(std::size_t place) noexcept {
  ThreadCaches::Frozen frozen(caches_);
  caches_.add_up(place);
}

// What a thread's cache leaves to its caller now and then.
void CachingManagedAllocator::look_up(std::size_t place) noexcept {
  note_peaks(place);
  if (decay_.enabled()) decay_if_memory_allows();
}

// Where there was no memory for the thread's cache, or for the stream in it, it counts elsewhere.
void CachingManagedAllocator::count_allocation(const Request& request, Block& block,
                                               bool from_cache) noexcept {
  const std::size_t place = book_.place_of(request.facade, request.device);
  // A thread that had no cache when its request began may have one by now, which does not know the
  // stream.
  ThreadCache* const cache = caches_.mine();
  if (cache != nullptr && cache->is_open(request.pools)) {
    bool within = false;
    {
      const InsideCache inside(*cache);
      within = cache->count_allocated(block, from_cache);
    }
    if (!within) note_peaks(place);
    return;
  }
  auto count = [&](Tally& tally, StreamTally& stream) {
    tally.allocated(size_class_of(block.size_bytes()), block.size_bytes(), block.requested_bytes(),
                    from_cache);
    stream.allocated(block.size_bytes());
  };
  caches_.count_elsewhere(count, place, request.pools);
}

// Inside the cache: what this thread counts of a stream may be the first that it has to do with it.
// `again`: it is to be found as one used of late.
void CachingManagedAllocator::open_to_count(ThreadCache* cache, const StreamKey& key,
                                            PoolIndex first, bool again) {
  if (!again && cache->is_open(first)) return;
  cache->open(key, first, book_.place_of(key.facade, key.device));
}

void CachingManagedAllocator::count_free(const Block& block, const StreamKey& key) noexcept {
  if (ThreadCache* cache = caches_.mine()) {
    try {
      const InsideCache inside(*cache);
      open_to_count(cache, key, first_of(block.pool));
      cache->count_freed(block);
      return;
    } catch (const std::bad_alloc&) {
      // The cache does not know the stream, and there is no memory to tell it.
    }
  }
  caches_.count_elsewhere(
      [&](Tally& tally, StreamTally& stream) {
        tally.freed(size_class_of(block.size_bytes()), block.size_bytes(), block.requested_bytes());
        stream.freed(block.size_bytes());
      },
      book_.place_of(key.facade, key.device), first_of(block.pool));
}

// With the lock: a guest's pages count where they are used while it is live.
void CachingManagedAllocator::lend_pages(const Block& block, PoolIndex from, PoolIndex to) {
  book_.pages_removed(pools_.at(from), block.address(), block.size_bytes());
  book_.pages_added(pools_.at(to), block.address(), block.size_bytes());
}

}  // namespace uvm
