// Of CachingManagedAllocator: blocks of small objects, and the pages they lie in.
#include <uvmalloc/allocator/caching_managed_allocator.hpp>

#include <algorithm>
#include <array>
#include <new>
#include <utility>

namespace uvm {
namespace {

// Small objects are fetched from an arena in batches of about so many bytes, at most so many.
constexpr std::size_t kRefillBytes = 16u << 10;
constexpr std::size_t kRefillBlocks = 16;

}  // namespace

// For an arena, with its locks held: pages that spans have ready, under the budget; nullptr: there
// are none.
void* CachingManagedAllocator::take_small_pages(PoolIndex pool_index, std::size_t size_bytes,
                                                bool any_facade) noexcept {
  std::lock_guard lock(lock_);
  try {
    Pool& pool = pools_.at(pool_index);
    const SpanStore::Run run =
        spans_.find(pool.key.facade, pool.key.device, size_bytes, any_facade);
    if (run.span == nullptr || !is_within_limits(pool.key, run.untouched_bytes, size_bytes)) {
      return nullptr;
    }
    spans_.take(run, size_bytes);
    book_.figures().touched_bytes.increase(run.untouched_bytes);
    add_small_pages(run, size_bytes, &pool);
    return run.base();
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

// With the lock: pages that were taken from their span are the pool's, or their span's again
// (std::bad_alloc).
void CachingManagedAllocator::add_small_pages(const SpanStore::Run& run, std::size_t size_bytes,
                                              Pool* pool) {
  std::size_t added_bytes = 0;
  try {
    for (; added_bytes < size_bytes; added_bytes += kPageBytes) {
      pools_.add_small_page(run.span, run.base() + added_bytes, *pool, run.span->placement);
    }
  } catch (const std::bad_alloc&) {
    while (added_bytes != 0) {
      added_bytes -= kPageBytes;
      pools_.remove_small_page(run.base() + added_bytes);
    }
    spans_.give_back(run.span, run.base(), size_bytes);
    throw;
  }
  book_.pages_added(*pool, run.base(), size_bytes);
  if (pool->key.facade != Facade::kDevice) return;
  try {
    const HintPlan plan =
        planner_.plan_use(run.base(), size_bytes, place_of_use(pool->key.facade, pool->key.device));
    small_plan_.insert(small_plan_.end(), plan.begin(), plan.end());
  } catch (const std::bad_alloc&) {
    // The pages are there without the hint.
  }
}

// For an arena, with its locks held. Another stream may get the pages: they wait for
// release_pages(), which waits for the device.
void CachingManagedAllocator::leave_small_pages(PoolIndex pool_index, void* run,
                                                std::size_t size_bytes) noexcept {
  std::lock_guard lock(lock_);
  for (std::size_t offset = 0; offset < size_bytes; offset += kPageBytes) {
    leaving_pages_.push_back(pools_.remove_small_page(static_cast<char*>(run) + offset));
  }
  const Pool& pool = pools_.at(pool_index);
  if (pool.key.facade == Facade::kDevice) leaving_page_users_.insert(pool.key.device);
  book_.pages_removed(pool, run, size_bytes);
}

// A batch from the arena: one for the caller, the rest for its thread's cache. nullptr: there are
// none.
Block* CachingManagedAllocator::refill(const Request& request, bool* took_pages) {
  std::array<void*, kRefillBlocks> addresses;
  std::array<Block*, kRefillBlocks> blocks;
  ThreadCache* cache = caches_.mine();
  std::size_t wanted = cache == nullptr ? 1
                                        : std::clamp(kRefillBytes / request.size_bytes,
                                                     std::size_t{1}, kRefillBlocks);
  const auto [count, took] =
      small_arenas_.allocate(request.pool(), request.size_bytes, addresses.data(), wanted);
  *took_pages |= took;
  if (count == 0) return nullptr;
  {
    std::lock_guard lock(lock_);
    for (std::size_t i = 0; i < count; ++i) {
      Block* block = pools_.add_small(static_cast<char*>(addresses[i]), request.size_bytes);
      block->real.origin = Place::device(pools_.span_of(*block)->device);
      block->real.indirect = &block->use;
      block->use.location = place_of_use(request.facade, request.device);
      blocks[i] = block;
    }
  }
  if (count > 1) {
    cache->lock.enter();
    // Backwards: the cache gives the lowest first.
    for (std::size_t i = count; i-- > 1;) cache->put_spare(blocks[i]);
    cache->lock.leave();
  }
  return blocks[0];
}

void* CachingManagedAllocator::allocate_small(const Request& request) {
  fenced_.drain_finished();
  decay_now_and_then();
  Block* block = nullptr;
  RuntimeStatus status;
  HintPlan plan;
  bool last = false;
  bool took_pages = false;
  for (int round = 0; block == nullptr; ++round) {
    block = refill(request, &took_pages);
    {
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
  count_allocation(request, *block, !took_pages);
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
  if (!is_capturing()) wait_for_fences(request);
  for (const auto& callback : pressure_callbacks()) (*callback)();
  if (!is_capturing()) {
    {
      std::lock_guard lock(lock_);
      ++book_.figures().pressure_rounds;
      ++book_.service_of(request.facade, request.device).pressure_rounds;
    }
    release_pages(SIZE_MAX);
  }
  if (has_room(false)) return true;
  if (within_limits()) {
    *status = add_span(request);
    if (status->ok()) return true;
  }
  if (!has_room(true)) return false;
  small_arenas_.use_any_facade(request.pool());
  return true;
}

}  // namespace uvm
