#include <uvmalloc/allocator/caching_managed_allocator.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include <uvmalloc/allocator/base/machine_memory.hpp>
#include <uvmalloc/allocator/engine/forks.hpp>
#include <uvmalloc/runtime/log.hpp>

namespace uvm {
namespace {

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

// std::invalid_argument for a budget in which no page has room.
const Configuration& checked(const Configuration& configuration) {
  auto check = [](std::string_view member, std::optional<std::size_t> bytes) {
    if (!bytes || *bytes >= kPageBytes) return;
    throw std::invalid_argument(
        fmt::format("{} is {}; accepted: 2 MiB or more", member, format_size(*bytes)));
  };
  check("budget_bytes", configuration.budget_bytes);
  check("device_budget_bytes", configuration.device_budget_bytes);
  return configuration;
}

}  // namespace

CachingManagedAllocator::CachingManagedAllocator(std::unique_ptr<DeviceRuntime> runtime,
                                                 const Configuration& configuration,
                                                 const std::string& figures_file)
    : configuration_(checked(configuration)),
      runtime_(std::move(runtime)),
      devices_(describe_devices(runtime_)),
      budget_(machine_budget(devices_, configuration, available_host_bytes())),
      span_memory_(runtime_, devices_, configuration, budget_.hard_bytes),
      figure_store_(kFacades * devices_.size(), figures_file),
      hint_counters_(figure_store_.hints()),
      events_(runtime_, runtime_.device_count()),
      stream_work_(runtime_, events_),
      sender_(runtime_, events_, hint_counters_),
      small_arenas_({[this](PoolIndex pool, SmallArenas::Growth most) {
                       return take_small_segment(pool, most);
                     },
                     [this](void* base) { leave_small_segment(base); },
                     [this](const void* address) { return pools_.is_ours(address); }}),
      caches_(figure_store_, thread_cache_bytes(configuration, budget_.hard_bytes),
              configuration.decay_seconds > 0 ? policy::kHitsPerClockRead : 0,
              [this](BlockChain blocks, const std::vector<PoolIndex>& streams) {
                give_back(std::move(blocks));
                note_thread_end(streams);
              }),
      planner_(configuration.policy, budget_.devices, ledger_, hint_counters_),
      pools_(configuration.requests_before_keeping),
      private_pools_(runtime_.device_count()),
      book_(devices_.size(), budget_.hard_bytes, figure_store_.totals()),
      fenced_(lock_, pools_, private_pools_, stream_work_, book_,
              [this](BlockChain blocks) { give_back(std::move(blocks)); }),
      decay_(Decay::Duration(configuration.decay_seconds)) {
  runtime_.count_in(&figure_store_.calls());
  if (configuration.host_backing == HostBacking::kOrdinary &&
      host_backing() != HostBacking::kOrdinary) {
    log(LogLevel::kWarning,
        "{}=ordinary needs devices that reach ordinary memory (pageable memory access), and not "
        "all do; managed memory is used",
        configuration.name_of("UVMALLOC_HOST_MEMORY", "host_backing"));
  }
  device_limits_.assign(devices_.size(), configuration.device_budget_bytes.value_or(SIZE_MAX));
  if (!configuration_.trace_file.empty()) {
    if (std::string why = start_trace(configuration_.trace_file); !why.empty()) {
      log_line(LogLevel::kWarning, why);
    }
  }
  Forks::add(this);
}

CachingManagedAllocator::~CachingManagedAllocator() {
  Forks::remove(this);
  caches_.close();
  if (in_forked_child()) {
    // What the driver made is the parent's.
    sender_.abandon();
    events_.abandon();
    return;
  }
  for (int device = 0; device < runtime_.device_count(); ++device) {
    if (book_.figures().span_bytes.increased != 0) runtime_.synchronize_device(device);
  }
  fenced_.close();
  for (const auto& pool : pools_.pools()) {
    if (pool->last_work) stream_work_.release(*pool->last_work);
  }
  small_arenas_.clear();
  for (const auto& span : spans_.spans()) {
    unpoison(span->base, span->size_bytes);
    span_memory_.give_back(*span);
  }
}

// ---- allocation

// What fits in the stream's pools, under one lock and without a call; nullptr where that does not
// do.
[[gnu::always_inline]] inline void* CachingManagedAllocator::allocate_from_pool(
    ThreadCache* cache, const Request& request) {
  RunBlock* block = nullptr;
  TraceTime at = 0;
  bool is_time_to_tidy = false;
  fenced_.drain_some();
  {
    const InlineStateGuard lock(lock_);
    Pool& pool = pools_.at(request.pool());
    block = pools_.take_trimmed(pool, request.size_bytes);
    if (block == nullptr) return nullptr;
    occupy(request, block, block->home);
    if (request.size_bytes >= kLargeBytes)
      is_time_to_tidy = ++pool.met % policy::kRequestsPerTrim == 0;
    at = trace_.now();
  }
  decay_now_and_then();
  void* address = block->address();
  if (at != 0) [[unlikely]] {
    trace_.allocated(at, {request.facade, request.device, address, request.requested_bytes,
                          block->size_bytes(), request.stream});
  }
  bool within = false;
  {
    const InsideCache inside(*cache);
    within = cache->count_allocated(*block, true);
  }
  if (!within) note_peaks(book_.place_of(request.facade, request.device));
  if (is_time_to_tidy) [[unlikely]]
    tidy(cache, request);
  return address;
}

void* CachingManagedAllocator::allocate(Facade facade, int device, std::size_t size_bytes,
                                        StreamHandle stream) {
  // Private pools are of the device facade alone.
  const bool may_be_private = facade == Facade::kDevice && private_pools_.any_open();
  if (ThreadCache* cache = caches_.mine(); cache != nullptr && !may_be_private) [[likely]] {
    ThreadCache::Outcome outcome{};
    PoolIndex pools = ThreadCache::kUnknownPools;
    const StreamHandle of = facade == Facade::kDevice ? stream : nullptr;
    cache->lock.enter();
    Block* block = cache->allocate(facade, device, of, size_bytes, &outcome, &pools);
    // Inside: a trace begins with the world stopped, and what it lists is not allocated again.
    const bool is_traced = trace_.enabled();
    cache->lock.leave();
    if (block != nullptr) [[likely]] {
      void* address = block->address();
      unpoison(address, block->size_bytes());
      if (is_traced) [[unlikely]] {
        trace_.allocated(trace_.now(),
                         {facade, device, address, size_bytes, block->size_bytes(), of});
      }
      if (outcome == ThreadCache::Outcome::kDoneAtLimit) [[unlikely]]
        look_up(book_.place_of(facade, device));
      return address;
    }
    if (pools != ThreadCache::kUnknownPools && size_bytes > kSmallBytes &&
        size_bytes <= kLargestRequest) {
      const Request request{facade,     device, rounded_size(facade, size_bytes),
                            size_bytes, of,     BlockPools::class_of(facade, size_bytes),
                            pools};
      if (void* address = allocate_from_pool(cache, request)) return address;
    }
  }
  return allocate_slowly(facade, device, size_bytes, stream);
}

// After some requests for large blocks that were met from their pool: what the thread keeps for the
// stream goes back to where it can be joined, medium blocks where they are many; and if there have
// been enough such requests, large blocks are kept from now on.
void CachingManagedAllocator::tidy(ThreadCache* cache, const Request& request) noexcept {
  bool keep_large = false;
  std::size_t used_bytes = 0;
  {
    std::lock_guard lock(lock_);
    keep_large = pools_.at(request.pool()).keeps_large();
    used_bytes = pools_.bytes_in_use(request.pools);
  }
  {
    Returning kept(*this);
    const InsideCache inside(*cache);
    cache->tidy(request.pools, used_bytes / policy::kMediumParts, &kept.blocks);
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
  Returning kept(*this);
  caches_.keep_no_large(request.pools, &kept.blocks);
}

void* CachingManagedAllocator::allocate_aligned(Facade facade, int device, std::size_t size_bytes,
                                                std::size_t alignment_bytes, StreamHandle stream) {
  if (!std::has_single_bit(alignment_bytes) || alignment_bytes > kPageBytes) {
    throw std::invalid_argument(fmt::format(
        "an alignment of {} bytes; accepted: powers of two up to 2 MiB", alignment_bytes));
  }
  return allocate_slowly(facade, device, size_bytes, stream, alignment_bytes);
}

void* CachingManagedAllocator::allocate_slowly(Facade facade, int device, std::size_t size_bytes,
                                               StreamHandle stream, std::size_t alignment_bytes) {
  if (in_forked_child()) {
    if (alignment_bytes > kGranule) {
      throw std::runtime_error(
          fmt::format("an alignment of {} bytes cannot be had in a forked child", alignment_bytes));
    }
    std::lock_guard lock(lock_);
    return child_memory_.allocate(facade, size_bytes);
  }
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
                  {RuntimeError::kOutOfMemory, 0, "larger than a block can be", "allocate"});
  }
  request.size_bytes = rounded_size(facade, size_bytes);
  if (is_aligned && facade != Facade::kDevice) {
    // Blocks of whole pages start on a page.
    request.size_bytes = round_up(size_bytes, kPageBytes);
    request.pool_class = PoolClass::kWhole;
  }
  StreamKey key{facade, device, request.stream, 0, DeviceStream::thread_of(request.stream)};
  bool whole_pages = false;
  if (facade == Facade::kDevice && private_pools_.any_open()) {
    const PrivatePools::Scope scope = private_scope_of(device, request.stream);
    key.private_pool = scope.pool;
    whole_pages = scope.whole_pages;
    if (whole_pages) request.size_bytes = round_up(request.size_bytes, kPageBytes);
    if (scope.pool != 0) {
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
  if (facade == Facade::kDevice && key.private_pool == 0) take_over_pools(key);
  bool is_new = false;
  bool keep_large = false;
  {
    std::lock_guard lock(lock_);
    std::size_t before = pools_.pools().size();
    request.pools = pools_.pools_of(key);
    is_new = pools_.pools().size() != before;
    keep_large = pools_.at(request.pool()).keeps_large();
  }
  caches_.make_room(request.pools);
  if (is_new && facade == Facade::kDevice) trace_.stream_seen(trace_.now(), device, stream);
  if (ThreadCache* cache = caches_.mine()) {
    // The stream's blocks may be here, only not among the streams used of late.
    ThreadCache::Outcome outcome{};
    PoolIndex pools = 0;
    bool goes_on = true;
    Block* block = nullptr;
    {
      Returning large(*this);
      const InsideCache inside(*cache);
      open_to_count(cache, key, request.pools, true);
      if (keep_large) cache->keep_large(request.pools, true);
      if (key.private_pool == 0 && !is_aligned) {
        block = cache->allocate(facade, device, request.stream, size_bytes, &outcome, &pools);
      }
      if (block == nullptr && request.size_bytes >= kLargeBytes) {
        goes_on = cache->take_out_large(request.pools, &large.blocks);
      }
    }
    if (!goes_on) keep_no_large(request);
    if (block != nullptr) {
      void* address = block->address();
      unpoison(address, block->size_bytes());
      trace_.allocated(trace_.now(),
                       {facade, device, address, size_bytes, block->size_bytes(), request.stream});
      if (outcome == ThreadCache::Outcome::kDoneAtLimit) look_up(book_.place_of(facade, device));
      return address;
    }
  }
  return request.size_bytes <= kSmallBytes ? allocate_small(request) : allocate_run(request);
}

// ---- free

FreeResult CachingManagedAllocator::free(void* address) noexcept {
  if (ThreadCache* cache = caches_.mine()) [[likely]] {
    Block* block = cache->known_at(address);
    if (block == nullptr) block = pools_.block_at(address);
    // Looked at inside: who stops the world may mark blocks, or begin a trace.
    cache->lock.enter();
    if (block != nullptr && block->now() == BlockState::kLive && block->plain) [[likely]] {
      // Before the block can be anybody else's.
      const TraceTime at = trace_.now();
      const std::size_t requested_bytes = block->requested_bytes();
      const std::size_t size_bytes = block->size_bytes();
      poison(address, size_bytes);
      const StreamKey* key = cache->put(block);
      const bool kept = key != nullptr;
      if (!kept && block->kind != BlockKind::kSmall) {
        key = cache->pass_on(*block);
        if (key != nullptr) block->set(BlockState::kReleasing);
      }
      cache->lock.leave();
      if (key != nullptr) [[likely]] {
        if (at != 0) [[unlikely]] {
          trace_.freed(
              at, {key->facade, key->device, address, requested_bytes, size_bytes, key->stream});
        }
        if (!kept) give_back_to_pool(static_cast<RunBlock*>(block));
        return FreeResult::kFreed;
      }
    } else {
      cache->lock.leave();
    }
  }
  return free_slowly(address);
}

// A plain block that has been counted as freed.
void CachingManagedAllocator::give_back_to_pool(RunBlock* block) noexcept {
  {
    const InlineStateGuard lock(lock_);
    pools_.put(block, pools_.at(block->pool));
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
    std::unique_lock lock(lock_);
    block = pools_.find(address);
    if (in_forked_child()) {
      // The parent's blocks are not the child's to free: the copy goes with the process.
      if (block != nullptr) return FreeResult::kFreed;
      return child_memory_.free(address) ? FreeResult::kFreed : FreeResult::kNotOurs;
    }
    if (block == nullptr && !pools_.is_ours(address)) return FreeResult::kNotOurs;
    if (!is_block_live(block) || block->address() != address) {
      lock.unlock();
      return report_misuse(address);
    }
    key = pools_.at(block->pool).key;
    is_plain = block->plain;
    if (!is_plain) {
      while (IndirectStorage* record = block->real.indirect) {
        block->real.detach(record);
        if (record != &block->use) drop_record(static_cast<MovedStorage*>(record));
      }
      try {
        fence = fenced_.needs_fence(*block, pools_.at(fenced_.pool_for(*block)));
      } catch (const std::bad_alloc&) {
        fence = true;  // its pools could not be made; nor may they be below
      }
    }
    if (const PoolIndex home = pools_.home_of(*block); home != block->pool) {
      lend_pages(*block, block->pool, home);
    }
    at = trace_.now();
    block->set(BlockState::kReleasing);
    poison(block->address(), block->size_bytes());
  }
  trace_.freed(at, {key.facade, key.device, address, block->requested_bytes(), block->size_bytes(),
                    key.stream});
  count_free(*block, key);
  if (!fence && !is_plain) {
    std::lock_guard lock(lock_);
    try {
      block->pool = fenced_.pool_for(*block);
      pools_.drop_extras(block);
    } catch (const std::bad_alloc&) {
      fence = true;  // its pools are gone again
    }
  }
  if (fence && fenced_.add(block)) return FreeResult::kFreed;
  give_back_plain(block);
  return FreeResult::kFreed;
}

// Of memory that is ours and is no start of a live block.
FreeResult CachingManagedAllocator::report_misuse(const void* address) const noexcept {
  void* base = nullptr;
  std::size_t size_bytes = 0;
  Facade facade = Facade::kHost;
  bool is_live = false;
  {
    std::lock_guard lock(lock_);
    // A free block may have been joined with the one before it.
    if (const Block* block = pools_.find(address)) {
      base = block->address();
      size_bytes = block->size_bytes();
      facade = pools_.at(block->pool).key.facade;
      is_live = block->now() == BlockState::kLive && base != address;
    }
  }
  if (base == nullptr) {
    log(LogLevel::kError,
        "free({}): a second free, of memory that is in no block any more; nothing was freed",
        address);
    return FreeResult::kDouble;
  }
  try {
    log(LogLevel::kError, "free({}): {} of a block of {} at {}, {} facade; nothing was freed",
        address, is_live ? "not the start" : "a second free", format_size(size_bytes), base,
        to_string(facade));
  } catch (const std::bad_alloc&) {
    log(LogLevel::kError, "free({}): {} of a block; nothing was freed", address,
        is_live ? "not the start" : "a second free");
  }
  return is_live ? FreeResult::kInterior : FreeResult::kDouble;
}

// A block that nobody waits for, to the pool it belongs to now. With a small object whose bin is
// full go some of the bin's.
void CachingManagedAllocator::give_back_plain(Block* block) noexcept {
  Returning back(*this);
  back.blocks.push(block);
  if (block->kind == BlockKind::kSmall) {
    ThreadCache* cache = caches_.mine();
    if (cache != nullptr && cache->is_open(first_of(block->pool))) {
      const InsideCache inside(*cache);
      cache->flush_some(*block, &back.blocks);
    }
  }
}

// Each to its pool; small ones to their arenas, as many at once as are of one size and come after
// each other.
void CachingManagedAllocator::give_back(BlockChain blocks) noexcept {
  if (blocks.empty()) return;
  BlockChain small;
  {
    std::lock_guard lock(lock_);
    while (!blocks.empty()) {
      Block* block = blocks.pop();
      if (block->kind == BlockKind::kSmall) {
        small.push(block);
        continue;
      }
      pools_.put(static_cast<RunBlock*>(block), pools_.at(block->pool));
    }
  }
  while (!small.empty()) {
    const PoolIndex pool = small.first()->pool;
    const std::size_t size_bytes = small.first()->size_bytes();
    std::array<void*, policy::kReturnedBlocks> addresses;
    std::size_t count = 0;
    {
      std::lock_guard lock(lock_);
      for (; !small.empty() && count < policy::kReturnedBlocks; ++count) {
        if (small.first()->pool != pool || small.first()->size_bytes() != size_bytes) break;
        Block* block = small.pop();
        addresses[count] = block->address();
        pools_.remove_small(block);
      }
    }
    small_arenas_.free(pool, addresses.data(), count, size_bytes);
  }
}

}  // namespace uvm
