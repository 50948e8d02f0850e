// Of CachingManagedAllocator: giving cached memory back: on request, under pressure, by age.
#include <uvmalloc/allocator/caching_managed_allocator.hpp>

#include <algorithm>
#include <map>
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
void CachingManagedAllocator::release_cached_where(const PoolFilter& wanted) {
  if (in_forked_child() || is_capturing()) return;
  reclaim_all();
  fenced_.drain_all();
  release_pages_of([&](const Pool& pool) { return wanted(pool) && may_release(pool); }, SIZE_MAX);
}

// The same of all pools. Returns what has left them.
std::size_t CachingManagedAllocator::release_pages(std::size_t most_bytes) {
  return release_pages_of([this](const Pool& pool) { return may_release(pool); }, most_bytes);
}

// With the lock: spans that go back to the driver as a whole or not at all, and that hold nothing
// but free blocks of the wanted pools. The ones with the fewest touched bytes come first.
std::vector<const Span*> CachingManagedAllocator::idle_spans(const PoolFilter& wanted) const {
  std::map<const Span*, std::size_t> free_bytes;
  for (const auto& pool : pools_.pools()) {
    if (!wanted(*pool)) continue;
    for (const RunBlock* block : pools_.with_pages(*pool, false)) {
      const Span* span = pools_.span_of(*block);
      if (span_memory_.gives_pages_back(*span)) continue;
      free_bytes[span] += BlockPools::whole_page_bytes(*block);
    }
  }
  std::vector<const Span*> idle;
  for (const auto& [span, bytes] : free_bytes) {
    if (bytes + span->free_bytes() == span->size_bytes) idle.push_back(span);
  }
  std::sort(idle.begin(), idle.end(), [](const Span* left, const Span* right) {
    return left->touched_bytes < right->touched_bytes;
  });
  return idle;
}

// With the lock: touched bytes in free blocks that could go back to the driver now.
std::size_t CachingManagedAllocator::idle_bytes() const {
  const PoolFilter any = [this](const Pool& pool) { return may_release(pool); };
  std::size_t bytes = 0;
  for (const Span* span : idle_spans(any)) bytes += span->touched_bytes;
  for (const auto& pool : pools_.pools()) {
    if (!any(*pool)) continue;
    for (const RunBlock* block : pools_.with_pages(*pool, false)) {
      if (!span_memory_.gives_pages_back(*pools_.span_of(*block))) continue;
      bytes += BlockPools::whole_page_bytes(*block);
    }
  }
  return bytes;
}

// Before another span is taken for a host facade. A free span there serves requests up to its size
// alone, so sizes that vary would leave ever more of them: they are held to half of what is in use.
void CachingManagedAllocator::release_surplus_spans(const Request& request) {
  if (request.facade == Facade::kDevice || is_capturing()) return;
  const PoolFilter wanted = [&](const Pool& pool) {
    return pool.key.facade == request.facade && pool.key.device == request.device;
  };
  std::size_t surplus_bytes = 0;
  std::size_t used_bytes = 0;
  {
    std::lock_guard lock(lock_);
    for (const Span* span : idle_spans(wanted)) surplus_bytes += span->touched_bytes;
    used_bytes = spans_.touched_bytes(request.facade, request.device) - surplus_bytes;
  }
  if (surplus_bytes > std::max(policy::kLeastSurplusBytes, used_bytes / policy::kSurplusParts)) {
    release_pages_of(wanted, surplus_bytes);
  }
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
void CachingManagedAllocator::leave_free_pages(const Pool& pool, Departure* departure) {
  const std::vector<RunBlock*> blocks = pools_.with_pages(pool, departure->is_of_all);
  leaving_pages_.reserve(leaving_pages_.size() + blocks.size());
  for (RunBlock* block : blocks) {
    const Span* span = pools_.span_of(*block);
    const bool goes_whole = departure->is_of_all || departure->spans.contains(span);
    const bool goes_by_page =
        departure->pages_bytes >= kPageBytes && span_memory_.gives_pages_back(*span);
    if (!goes_whole && !goes_by_page) continue;
    if (BlockExtras* extras = pools_.extras(block)) {
      departure->fences.insert(departure->fences.end(), extras->fences.begin(),
                               extras->fences.end());
      pools_.drop_extras(block);
      block->plain = true;
    }
    const Pool& home = pools_.at(block->home);
    const BlockPools::Pages pages =
        pools_.release_pages(block, goes_whole ? SIZE_MAX : departure->pages_bytes);
    if (pages.base == nullptr) continue;
    if (!goes_whole) departure->pages_bytes -= pages.size_bytes;
    departure->left_bytes += pages.size_bytes;
    leave(pages, pool);
    book_.pages_removed(home, pages.base, pages.size_bytes);
  }
}

// With the lock: what about `most_bytes` of the wanted pools are. Spans that go as a whole are in
// it if at least half of their bytes are.
CachingManagedAllocator::Departure CachingManagedAllocator::departure_of(
    const PoolFilter& wanted, std::size_t most_bytes) const {
  Departure departure;
  departure.is_of_all = most_bytes == SIZE_MAX;
  if (departure.is_of_all) return departure;
  for (const Span* span : idle_spans(wanted)) {
    if (span->touched_bytes / 2 > most_bytes) break;
    departure.spans.insert(span);
    most_bytes -= std::min(most_bytes, span->touched_bytes);
  }
  departure.pages_bytes = most_bytes;
  return departure;
}

// Wholly free pages, at most about `most_bytes`, back to their spans, empty spans back to the
// driver. Pages leave the pools before the devices are waited for, so that nothing freed meanwhile
// goes back with work pending. Pages of spans that stay in use are discarded or dropped where that
// gives them back, so that they count as untouched. Where it does not, less than SIZE_MAX takes
// idle spans alone. One thread at a time: another that needs memory must find what is on its way
// back. `wanted` is called with the lock. Returns what has left the pools.
std::size_t CachingManagedAllocator::release_pages_of(const PoolFilter& wanted,
                                                      std::size_t most_bytes) {
  std::lock_guard one_at_a_time(release_mutex_);
  // While the pages are sure to be ours.
  send_pending_hints();
  reclaim_all();
  small_arenas_.purge([&](PoolIndex pool) {
    std::lock_guard lock(lock_);
    return wanted(pools_.at(pool));
  });
  Departure departure;
  // Nobody can use what has left before the devices were waited for.
  struct FencesEnd {
    ~FencesEnd() { work.release(&fences); }
    StreamWork& work;
    std::vector<Fence>& fences;
  } fences_end{stream_work_, departure.fences};
  std::set<int> devices;
  {
    std::lock_guard lock(lock_);
    departure = departure_of(wanted, most_bytes);
    for (const auto& pool : pools_.pools()) {
      if (wanted(*pool)) leave_free_pages(*pool, &departure);
    }
    for (const LeavingPages& left : leaving_pages_) {
      devices.insert(left.pages.span->device);
      if (left.user_device >= 0) devices.insert(left.user_device);
    }
  }
  const bool are_idle = std::all_of(devices.begin(), devices.end(), [&](int device) {
    return stream_work_.wait_for_device(device);
  });
  // Else they are nobody's until the devices can be waited for.
  if (!are_idle) return departure.left_bytes;
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
      if (pool->key.private_pool != 0 && may_release(*pool)) BlockPools::drop_empty_tables(*pool);
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
  return departure.left_bytes;
}

void CachingManagedAllocator::free_spans(std::vector<std::unique_ptr<Span>> spans) noexcept {
  for (const auto& span : spans) {
    unpoison(span->base, span->size_bytes);
    const auto begin = std::chrono::steady_clock::now();
    const RuntimeStatus status = span_memory_.give_back(*span);
    const auto taken = std::chrono::steady_clock::now() - begin;
    {
      std::lock_guard lock(lock_);
      book_.service_of(span->facade, span->device).span_frees.add(taken);
    }
    if (status.ok() || status.error == RuntimeError::kNotUsable) continue;
    try {
      log_once(LogLevel::kWarning, status.text(),
               fmt::format("{} could not be given back to the driver: {}",
                           format_size(span->size_bytes), status.text()));
    } catch (const std::bad_alloc&) {
      log_line(LogLevel::kWarning, "memory could not be given back to the driver");
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
      if (span_memory_.gives_pages_back(*span)) spans.push_back(span.get());
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
    due = decay_.due(now, kept_by_threads_bytes_ + idle_bytes());
  }
  // To the nearest page, or the last one would stay for ever.
  due = (due + kPageBytes / 2) & ~(kPageBytes - 1);
  if (due == 0) return;
  const std::size_t left_bytes = release_pages(due);
  std::lock_guard lock(lock_);
  decay_.gave_back(left_bytes);
}

void CachingManagedAllocator::decay_every_so_often() {
  if (long_ways_.fetch_add(1, std::memory_order_relaxed) % policy::kSlowCallsPerClockRead ==
      policy::kSlowCallsPerClockRead - 1) {
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
