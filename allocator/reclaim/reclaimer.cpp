#include "allocator/reclaim/reclaimer.hpp"

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "allocator/spans/host_backing.hpp"
#include "runtime/log.hpp"

namespace uvm {

void Reclaimer::reclaim_all_and_fenced(const Request& request) {
  returner_.flush_all();
  if (state_.is_capturing()) return;
  {
    const HeapGuard heap(state_);
    ++heap->statistics.service_of(request.facade, request.device).fence_waits;
  }
  fenced_.drain_all();
}

void Reclaimer::release_cached() {
  if (machine_.in_forked_child() || state_.is_capturing()) return;
  returner_.flush_all();
  {
    const HeapGuard heap(state_);
    for (auto& facade : heap->statistics.services()) {
      for (ServiceStatistics& device : facade) ++device.fence_waits;
    }
  }
  fenced_.drain_all();
  release_pages(SIZE_MAX);
}

void Reclaimer::release_cached_of(Facade facade) {
  release_cached_where([&](const LockedHeap& heap, const Pool& pool) {
    return pool.key.facade == facade && heap->may_release(pool);
  });
}

void Reclaimer::release_cached_of(int device, std::uint64_t private_pool) {
  release_cached_where([&](const LockedHeap& heap, const Pool& pool) {
    return pool.key.device == device && pool.key.private_pool == private_pool &&
           heap->may_release(pool);
  });
}

void Reclaimer::release_reserved() {
  release_cached_where([](const LockedHeap&, const Pool& pool) {
    return pool.key.private_pool == StreamKey::kReserved;
  });
}

void Reclaimer::release_cached_where(const PoolFilter& wanted) {
  if (machine_.in_forked_child() || state_.is_capturing()) return;
  returner_.flush_all();
  fenced_.drain_all();
  release_pages_of(wanted, SIZE_MAX);
}

std::size_t Reclaimer::release_pages(std::size_t most_bytes) {
  return release_pages_of(
      [](const LockedHeap& heap, const Pool& pool) {
        return heap->may_release(pool) || pool.key.private_pool == StreamKey::kReserved;
      },
      most_bytes);
}

// Returns the pool's free blocks that may hold whole pages. If the pool is not wanted, returns only
// blocks that were displaced from a wanted pool.
std::vector<PageBlock*> Reclaimer::free_blocks(const LockedHeap& heap, const Pool& pool,
                                               const PoolFilter& wanted, bool fenced_too) const {
  if (wanted(heap, pool)) return heap->pools.with_pages(pool, fenced_too);
  std::vector<PageBlock*> blocks = heap->pools.displaced_with_pages(pool, fenced_too);
  std::erase_if(blocks, [&](const PageBlock* block) {
    return !wanted(heap, heap->pools.at(block->owning_pool));
  });
  return blocks;
}

// Returns the spans that can be returned only as a whole and hold only free blocks of the wanted
// pools. Spans with fewer touched bytes come first.
std::vector<const Span*> Reclaimer::idle_spans(const LockedHeap& heap,
                                               const PoolFilter& wanted) const {
  std::map<const Span*, std::size_t> free_bytes;
  for (const auto& pool : heap->pools.all()) {
    for (const PageBlock* block : free_blocks(heap, *pool, wanted, false)) {
      const Span* span = heap->pools.directory().span_of(*block);
      if (machine_.span_memory.gives_pages_back(*span)) continue;
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

std::size_t Reclaimer::idle_bytes(const LockedHeap& heap) const {
  const PoolFilter any = [](const LockedHeap& locked, const Pool& pool) {
    return locked->may_release(pool);
  };
  std::size_t bytes = 0;
  for (const Span* span : idle_spans(heap, any)) bytes += span->touched_bytes;
  for (const auto& pool : heap->pools.all()) {
    if (!any(heap, *pool)) continue;
    for (const PageBlock* block : heap->pools.with_pages(*pool, false)) {
      if (!machine_.span_memory.gives_pages_back(*heap->pools.directory().span_of(*block)))
        continue;
      bytes += BlockPools::whole_page_bytes(*block);
    }
  }
  return bytes;
}

void Reclaimer::release_surplus_spans(const Request& request) {
  if (request.facade == Facade::kDevice || state_.is_capturing()) return;
  const PoolFilter wanted = [&](const LockedHeap&, const Pool& pool) {
    return pool.key.facade == request.facade && pool.key.device == request.device;
  };
  std::size_t surplus_bytes = 0;
  std::size_t most_bytes = 0;
  {
    const HeapGuard heap(state_);
    const Pool& pool = heap->page_granular_pool(request.pools);
    std::size_t free_bytes = pool.own.free_bytes();
    for (const PageBlock* block : pool.displaced_away) free_bytes += block->size_bytes();
    const std::size_t touched_bytes = heap->spans.touched_bytes(request.facade, request.device);
    auto bound = [](std::size_t used_bytes) {
      return std::max(policy::kLeastSurplusBytes, used_bytes / policy::kSurplusParts);
    };
    if (free_bytes <= bound(touched_bytes - std::min(free_bytes, touched_bytes))) return;
    for (const Span* span : idle_spans(heap, wanted)) surplus_bytes += span->touched_bytes;
    most_bytes = bound(touched_bytes - surplus_bytes);
  }
  // Keep half of the allowed surplus, so that the next request does not release again.
  if (surplus_bytes > most_bytes) release_pages_of(wanted, surplus_bytes - most_bytes / 2);
}

// Removes whole free pages, and their fences, from the pool. A block with fences is removed whole,
// because its rest would need the fences too. After std::bad_alloc `detached_` lists the pages
// removed so far.
void Reclaimer::detach_free_pages(const LockedHeap& heap, const Pool& pool,
                                  const PoolFilter& wanted, Departure* departure) {
  heap.proves(state_);
  const bool takes_fenced = departure->is_of_all || departure->takes_fenced;
  const std::vector<PageBlock*> blocks = free_blocks(heap, pool, wanted, takes_fenced);
  detached_.reserve(detached_.size() + blocks.size());
  for (PageBlock* block : blocks) {
    const Span* span = heap->pools.directory().span_of(*block);
    const bool goes_whole = departure->is_of_all || departure->spans.contains(span);
    const bool goes_by_page =
        departure->pages_bytes >= kPageBytes && machine_.span_memory.gives_pages_back(*span);
    if (!goes_whole && !goes_by_page) continue;
    if (BlockSideState* side_state = heap->pools.side_states().find(block)) {
      departure->fences.insert(departure->fences.end(), side_state->fences.begin(),
                               side_state->fences.end());
      heap->pools.side_states().drop(block);
      block->has_no_side_state = true;
    }
    const Pool& owning_pool = heap->pools.at(block->owning_pool);
    const PageRun pages =
        heap->pools.release_pages(block, goes_whole ? SIZE_MAX : departure->pages_bytes);
    if (pages.base == nullptr) continue;
    if (!goes_whole) departure->pages_bytes -= pages.size_bytes;
    departure->left_bytes += pages.size_bytes;
    detached_.push_back(
        {pages, pool.key.facade == Facade::kDevice ? pool.key.device : Detached::kNobody});
    heap->statistics.pages_removed(owning_pool, pages.base, pages.size_bytes);
    heap->reserve.give_back(owning_pool.key.facade, owning_pool.key.device, pages.size_bytes);
  }
}

// Chooses pages of about `most_bytes` from the wanted pools. A span that can be returned only as a
// whole is chosen if at least half of its touched bytes are wanted.
Reclaimer::Departure Reclaimer::departure_of(const LockedHeap& heap, const PoolFilter& wanted,
                                             std::size_t most_bytes) const {
  Departure departure;
  departure.is_of_all = most_bytes == SIZE_MAX;
  if (departure.is_of_all) return departure;
  for (const Span* span : idle_spans(heap, wanted)) {
    if (span->touched_bytes / 2 > most_bytes) break;
    departure.spans.insert(span);
    most_bytes -= std::min(most_bytes, span->touched_bytes);
  }
  departure.pages_bytes = most_bytes;
  return departure;
}

// Detaches the pages before the thread waits for the devices, so that no block freed during the
// wait is returned with pending work. Free pages of spans that stay in use are discarded or dropped
// if that frees memory, and then count as untouched. If a discard would free no memory, pages are
// detached only with their whole span, unless `most_bytes` is SIZE_MAX.
std::size_t Reclaimer::release_pages_of(const PoolFilter& wanted, std::size_t most_bytes) {
  return release_chosen(
      wanted, [&](const LockedHeap& heap) { return departure_of(heap, wanted, most_bytes); });
}

void Reclaimer::release_spans_of(int device) {
  const auto is_lost = [&](const Span& span) { return span.device == device && !span.ordinary; };
  release_chosen([](const LockedHeap&, const Pool&) { return true; },
                 [&](const LockedHeap& heap) {
                   Departure departure;
                   departure.takes_fenced = true;
                   for (const auto& span : heap->spans.spans()) {
                     if (!is_lost(*span)) continue;
                     span->reserved = false;
                     departure.spans.insert(span.get());
                   }
                   return departure;
                 });
  std::size_t left_bytes = 0;
  {
    const HeapGuard heap(state_);
    for (const auto& span : heap->spans.spans()) {
      if (is_lost(*span)) left_bytes += span->size_bytes;
    }
  }
  if (left_bytes == 0) return;
  log(LogLevel::kWarning,
      "device {} was reset, but {} of its memory stay reserved: a stream of another device may "
      "still use them",
      device, format_size(left_bytes));
}

std::size_t Reclaimer::release_chosen(const PoolFilter& wanted, const Choose& choose) {
  const RankedGuard one_at_a_time(mutex_);
  // Send pending hints first, while their pages are still in the pools.
  hints_.send_pending();
  returner_.flush_all();
  arenas_.purge([&](PoolIndex pool) {
    const HeapGuard heap(state_);
    return wanted(heap, heap->pools.at(pool));
  });
  Departure departure;
  // No request can get detached pages before the devices are idle, so their fences may be released.
  struct FencesEnd {
    ~FencesEnd() { work.release(&fences); }
    StreamWork& work;
    std::vector<Fence>& fences;
  } fences_end{machine_.stream_work, departure.fences};
  std::set<int> devices;
  {
    const HeapGuard heap(state_);
    departure = choose(heap);
    for (const auto& pool : heap->pools.all()) {
      detach_free_pages(heap, *pool, wanted, &departure);
    }
    devices = devices_to_wait_for(heap);
  }
  hints_.finish_pending();
  const bool are_idle = std::all_of(devices.begin(), devices.end(), [&](int device) {
    return machine_.stream_work.wait_for_device(device);
  });
  // If the wait failed, the pages stay out of use until a later wait succeeds.
  if (!are_idle) return departure.left_bytes;
  std::vector<std::unique_ptr<Span>> empty;
  {
    const HeapGuard heap(state_);
    empty = attach_to_spans(heap);
  }
  free_spans(std::move(empty));
  discard_free_pages();
  stream_pools_.give_back_released();
  return departure.left_bytes;
}

std::set<int> Reclaimer::devices_to_wait_for(const LockedHeap& heap) const {
  heap.proves(state_);
  std::set<int> devices;
  for (const Detached& left : detached_) {
    devices.insert(left.pages.span->device);
    if (left.user_device != Detached::kNobody) devices.insert(left.user_device);
  }
  return devices;
}

// Gives the detached pages back to their spans. Returns the spans that are now empty.
std::vector<std::unique_ptr<Span>> Reclaimer::attach_to_spans(const LockedHeap& heap) {
  heap.proves(state_);
  while (!detached_.empty()) {
    const PageRun& pages = detached_.back().pages;
    heap->spans.give_back(pages.span, pages.base, pages.size_bytes);
    detached_.pop_back();
  }
  // Drop unused tables of retired streams and released private pools. The pools remain while they
  // have live blocks.
  for (const auto& pool : heap->pools.all()) {
    if (pool->key.private_pool != 0 && heap->may_release(*pool)) pool->drop_unused_tables();
  }
  auto empty = heap->spans.remove_empty();
  for (const auto& span : empty) {
    heap->ledger.remove_span(span->base);
    heap->statistics.figures().span_bytes.decrease(span->size_bytes);
    heap->statistics.figures().touched_bytes.decrease(span->touched_bytes);
  }
  return empty;
}

void Reclaimer::free_spans(std::vector<std::unique_ptr<Span>> spans) noexcept {
  if (!spans.empty()) machine_.sender.finish_prefetches();
  for (const auto& span : spans) {
    unpoison(span->base, span->size_bytes);
    const auto begin = std::chrono::steady_clock::now();
    const RuntimeStatus status = machine_.span_memory.give_back(*span);
    const auto taken = std::chrono::steady_clock::now() - begin;
    {
      const HeapGuard heap(state_);
      heap->statistics.service_of(span->facade, span->device).span_frees.add(taken);
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

// For spans that are not released, discards the contents of their free pages. This returns those
// pages to the budget. Called under mutex_, after the wait for the devices.
void Reclaimer::discard_free_pages() {
  std::vector<Span*> spans;
  {
    const HeapGuard heap(state_);
    for (const auto& span : heap->spans.spans()) {
      if (machine_.span_memory.gives_pages_back(*span)) spans.push_back(span.get());
    }
  }
  // The pointers stay valid, because only release_chosen() removes spans.
  for (Span* span : spans) discard_free_pages_of(span);
}

void Reclaimer::discard_free_pages_of(Span* span) {
  std::vector<SpanStore::Run> runs;
  {
    const HeapGuard heap(state_);
    runs = heap->spans.take_touched(span);
  }
  while (!runs.empty()) {
    const SpanStore::Run run = runs.back();
    const bool is_discarded = try_to_discard(run);
    const HeapGuard heap(state_);
    runs.pop_back();
    if (is_discarded) {
      heap->spans.give_back_untouched(run.span, run.base(), run.size_bytes);
      heap->statistics.figures().touched_bytes.decrease(run.size_bytes);
      heap->statistics.figures().discarded_bytes += run.size_bytes;
      heap->ledger.discard(run.base(), run.size_bytes);
    } else {
      heap->spans.give_back(run.span, run.base(), run.size_bytes);
    }
    if (runs.empty()) heap->spans.end_taking();
  }
}

// Discards pages that were taken out of their span. Returns false if that failed.
bool Reclaimer::try_to_discard(const SpanStore::Run& run) noexcept {
  try {
    // A driver does not discard ordinary memory, so the kernel drops it.
    const bool ordinary = run.span->ordinary;
    const int device = run.span->device;
    const RuntimeStatus status = ordinary
                                     ? drop_ordinary(run.base(), run.size_bytes)
                                     : machine_.sender.discard(device, run.base(), run.size_bytes);
    if (!status.ok()) {
      machine_.trace.call_failed(machine_.trace.now(), device, run.base(), run.size_bytes, status);
    } else if (machine_.trace.enabled()) {
      machine_.trace.discarded(machine_.trace.now(), device, run.base(), run.size_bytes,
                               ordinary ? nullptr : machine_.sender.lane(device));
    }
    return status.ok();
  } catch (const std::bad_alloc&) {
    return false;
  }
}

}  // namespace uvm
