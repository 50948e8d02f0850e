// Of CachingManagedAllocator: giving cached memory back: on request, under pressure, by age.
#include <uvmalloc/allocator/caching_managed_allocator.hpp>

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/format.h>

#include <uvmalloc/runtime/log.hpp>

namespace uvm {

// For a request that would fail otherwise: what threads keep and, but for during a capture, what
// is behind fences goes back to its pools.
void CachingManagedAllocator::reclaim_all_and_fenced(const Request& request) {
  reclaim_all();
  if (is_capturing()) return;
  {
    std::lock_guard lock(lock_);
    ++book_.service_of(request.facade, request.device).fence_waits;
  }
  fenced_.drain_all();
}

void CachingManagedAllocator::release_cached() {
  if (in_forked_child() || is_capturing()) return;
  reclaim_all();
  {
    std::lock_guard lock(lock_);
    for (auto& facade : book_.services()) {
      for (ServiceStatistics& device : facade) ++device.fence_waits;
    }
  }
  fenced_.drain_all();
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
  fenced_.drain_all();
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

// With the lock: pages of the pool's blocks or guests are on their way to their span. There must be
// room in the list.
void CachingManagedAllocator::leave(const BlockPools::Pages& pages, const Pool& pool) {
  leaving_pages_.push_back(
      {pages, pool.key.facade == Facade::kDevice ? pool.key.device : LeavingPages::kNobody});
}

// With the lock: whole free pages leave the pool, and their fences with them. Blocks behind fences
// go all or not at all: one that stays must keep its fence. Without memory (std::bad_alloc) what
// has left already is in leaving_pages_.
void CachingManagedAllocator::leave_free_pages(const Pool& pool, std::size_t* most_bytes,
                                               std::vector<Fence>* fences) {
  const std::vector<RunBlock*> blocks = pools_.with_pages(pool, *most_bytes == SIZE_MAX);
  leaving_pages_.reserve(leaving_pages_.size() + blocks.size());
  for (RunBlock* block : blocks) {
    if (*most_bytes < kPageBytes) return;
    if (BlockExtras* extras = pools_.extras(block)) {
      fences->insert(fences->end(), extras->fences.begin(), extras->fences.end());
      pools_.drop_extras(block);
      block->plain = true;
    }
    const Pool& home = pools_.at(block->home);
    const BlockPools::Pages pages = pools_.release_pages(block, *most_bytes);
    if (pages.base == nullptr) continue;
    if (*most_bytes != SIZE_MAX) *most_bytes -= pages.size_bytes;
    leave(pages, pool);
    book_.pages_removed(home, pages.base, pages.size_bytes);
  }
}

// `wanted` is called with the lock.
void CachingManagedAllocator::release_pages_of(const std::function<bool(const Pool&)>& wanted,
                                               std::size_t most_bytes) {
  std::lock_guard one_at_a_time(release_mutex_);
  // While the pages are sure to be ours.
  send_pending_hints();
  reclaim_all();
  small_arenas_.purge([&](PoolIndex pool) {
    std::lock_guard lock(lock_);
    return wanted(pools_.at(pool));
  });
  std::vector<Fence> fences;
  std::set<int> devices;
  {
    std::lock_guard lock(lock_);
    for (const auto& pool : pools_.pools()) {
      if (wanted(*pool)) leave_free_pages(*pool, &most_bytes, &fences);
    }
    for (const LeavingPages& left : leaving_pages_) {
      devices.insert(left.pages.span->device);
      if (left.user_device >= 0) devices.insert(left.user_device);
    }
  }
  const bool are_idle = std::all_of(devices.begin(), devices.end(), [&](int device) {
    return stream_work_.wait_for_device(device);
  });
  stream_work_.release(&fences);
  // Else they are nobody's until the devices can be waited for.
  if (!are_idle) return;
  std::vector<std::unique_ptr<Span>> empty;
  {
    std::lock_guard lock(lock_);
    while (!leaving_pages_.empty()) {
      const BlockPools::Pages& pages = leaving_pages_.back().pages;
      spans_.give_back(pages.span, pages.base, pages.size_bytes);
      leaving_pages_.pop_back();
    }
    // Of streams, graphs and users' pools that are gone nothing is to stay but their numbers.
    for (const auto& pool : pools_.pools()) {
      if (pool->key.private_pool == 0 || !may_release(*pool)) continue;
      pool->own.drop_empty_tables();
      pool->guests.drop_empty_tables();
    }
    empty = spans_.remove_empty();
    for (const auto& span : empty) {
      ledger_.remove_span(span->base);
      book_.figures().span_bytes.decrease(span->size_bytes);
      book_.figures().touched_bytes.decrease(span->touched_bytes);
    }
  }
  free_spans(std::move(empty));
  discard_free_pages();
}

void CachingManagedAllocator::free_spans(std::vector<std::unique_ptr<Span>> spans) {
  for (const auto& span : spans) {
    unpoison(span->base, span->size_bytes);
    const auto begin = std::chrono::steady_clock::now();
    const RuntimeStatus status = span_memory_.give_back(*span);
    const auto taken = std::chrono::steady_clock::now() - begin;
    {
      std::lock_guard lock(lock_);
      book_.service_of(span->facade, span->device).span_frees.add(taken);
    }
    if (!status.ok() && status.error != RuntimeError::kNotUsable) {
      log_once(LogLevel::kWarning, status.text(),
               fmt::format("{} could not be given back to the driver: {}",
                           format_size(span->size_bytes), status.text()));
    }
  }
}

// Free pages whose span stays: their contents are dropped, and the budget has them again.
// With release_mutex_, after the devices were waited for.
void CachingManagedAllocator::discard_free_pages() {
  std::vector<Span*> spans;
  {
    std::lock_guard lock(lock_);
    for (const auto& span : spans_.spans()) {
      const auto& can = devices_[static_cast<std::size_t>(span->device)].capabilities;
      // Managed pages of the host stay charged while their span lives, whatever is in them.
      if (span->ordinary || (span->facade == Facade::kDevice && can.discard)) {
        spans.push_back(span.get());
      }
    }
  }
  // They stay: only release_pages_of() removes some.
  for (Span* span : spans) discard_free_pages_of(span);
}

void CachingManagedAllocator::discard_free_pages_of(Span* span) {
  std::vector<SpanStore::Run> runs;
  {
    std::lock_guard lock(lock_);
    runs = spans_.take_touched(span);
  }
  while (!runs.empty()) {
    const SpanStore::Run run = runs.back();
    const bool is_discarded = try_to_discard(run);
    std::lock_guard lock(lock_);
    runs.pop_back();
    if (!is_discarded) {
      spans_.give_back(run.span, run.base(), run.size_bytes);
      continue;
    }
    spans_.give_back_untouched(run.span, run.base(), run.size_bytes);
    book_.figures().touched_bytes.decrease(run.size_bytes);
    book_.figures().discarded_bytes += run.size_bytes;
    ledger_.set(run.base(), run.size_bytes, Place::nowhere());
  }
}

// Pages that are taken out of their span.
bool CachingManagedAllocator::try_to_discard(const SpanStore::Run& run) noexcept {
  try {
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
    return status.ok();
  } catch (const std::bad_alloc&) {
    return false;
  }
}

// With the lock: whether the pool's pages may serve others.
bool CachingManagedAllocator::may_release(const Pool& pool) const {
  const StreamKey& key = pool.key;
  return key.private_pool == 0 || private_pools_.users(key.device, key.private_pool) == 0;
}

bool CachingManagedAllocator::is_decay_due(Decay::Time now) const {
  std::lock_guard lock(lock_);
  return decay_.is_period_over(now);
}

void CachingManagedAllocator::decay(Decay::Time now) {
  if (in_forked_child() || is_capturing()) return;
  std::size_t due = 0;
  const bool is_due = is_decay_due(now);
  if (is_due) fenced_.shed_finished_fences();
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

void CachingManagedAllocator::decay_every_so_often() {
  constexpr unsigned kEvery = 64;
  if (long_ways_.fetch_add(1, std::memory_order_relaxed) % kEvery == kEvery - 1) {
    decay_if_memory_allows();
  }
}

void CachingManagedAllocator::decay_if_memory_allows() noexcept {
  try {
    decay(std::chrono::steady_clock::now());
  } catch (const std::bad_alloc&) {
    // Without memory for lists of what is to go, it stays.
  }
}

}  // namespace uvm
