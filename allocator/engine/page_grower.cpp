#include "allocator/engine/page_grower.hpp"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

namespace uvm {

// Finds the place where the request touches the fewest new pages. In a packed pool this is often
// beside a free block, because only the bytes that the block lacks are needed.
PageGrower::Growth PageGrower::plan_growth(const LockedHeap& heap, const Request& request,
                                           bool any_facade) const {
  Growth best;
  best.size_bytes = round_up(request.size_bytes, kPageBytes);
  const Pool& pool = heap->pools.at(request.pool());
  const bool ordinary = is_ordinary(pool.key);
  best.run =
      heap->spans.find(request.facade, request.device, best.size_bytes, any_facade, ordinary);
  if (pool.pool_class == PoolClass::kPageGranular) return best;
  auto consider = [&](Span* span, const char* base, std::size_t size_bytes) {
    const SpanStore::Run run = SpanStore::find_at(span, base, size_bytes);
    if (run.span == nullptr) return;
    const bool better =
        best.run.span == nullptr || std::pair(run.untouched_bytes, size_bytes) <
                                        std::pair(best.run.untouched_bytes, best.size_bytes);
    if (better) best = {run, size_bytes};
  };
  auto missing_bytes = [&](std::size_t there) {
    return round_up(request.size_bytes - there, kPageBytes);
  };
  heap->spans.each_free(
      request.facade, request.device,
      [&](Span* span, char* base, std::size_t size_bytes) {
        char* end = base + size_bytes;
        const std::size_t before = heap->pools.free_bytes_before(pool, *span, base);
        const std::size_t after = heap->pools.free_bytes_after(pool, *span, end);
        // Skip the gap: a free block beside it is large enough, and was freed after the search.
        if (std::max(before, after) >= request.size_bytes) return;
        if (before != 0) consider(span, base, missing_bytes(before));
        if (after != 0) {
          consider(span, end - missing_bytes(after), missing_bytes(after));
        }
        if (before != 0 && after != 0 && before + size_bytes + after >= request.size_bytes) {
          consider(span, base, size_bytes);
        }
      },
      ordinary);
  return best;
}

bool PageGrower::is_on_a_device(const LockedHeap& heap, const void* address,
                                std::size_t size_bytes) const {
  for (int device = 0; device < machine_.device_count(); ++device) {
    if (heap->ledger.bytes_at(address, size_bytes, Place::device(device)) != 0) return true;
  }
  return false;
}

// Turns pages of a span into a block of the pool, and sets `*plan` to the hints for these pages.
// The block is not in the pool's index yet. After std::bad_alloc the pages are free in their span.
PageBlock* PageGrower::add_run(const LockedHeap& heap, const SpanStore::Run& run,
                               std::size_t size_bytes, Pool& pool, HintPlan* plan) {
  heap->spans.take(run, size_bytes);
  heap->statistics.figures().touched_bytes.increase(run.untouched_bytes);
  const StreamKey& key = pool.key;
  const Place wanted = place_of_use(key.facade, key.device);
  SegmentPlacement placement = run.span->placement;
  PageBlock* block = nullptr;
  try {
    heap->statistics.prepare(pool);
    if (run.span->facade != key.facade || run.span->device != key.device) {
      *plan = heap->planner.plan_move(run.base(), size_bytes, &placement, wanted);
    } else if (wanted.is_host() && is_on_a_device(heap, run.base(), size_bytes)) {
      // An earlier block at this address was moved. Its advice is no longer on record, so the
      // advice is given again.
      SegmentPlacement of_the_block = placement;
      of_the_block.preferred = Place::nowhere();
      *plan = heap->planner.plan_move(run.base(), size_bytes, &of_the_block, wanted);
    }
    block = heap->pools.add_pages({run.span, run.base(), size_bytes, placement}, pool);
  } catch (const std::bad_alloc&) {
    HintDispatcher::forget(heap, *plan);
    *plan = {};
    heap->spans.give_back(run.span, run.base(), size_bytes);
    throw;
  }
  heap->statistics.pages_added(pool, run.base(), size_bytes);
  if (heap->used_bytes() <= heap->budget_bytes) heap->reserve.refill();
  if (limits::are_pages_short(heap, key)) heap->pools.conserve_pages();
  return block;
}

Found PageGrower::take(const LockedHeap& heap, const Request& request, const Growth& growth,
                       HintPlan* plan) {
  Pool& pool = heap->pools.at(request.pool());
  PageBlock* block = add_run(heap, growth.run, growth.size_bytes, pool, plan);
  if (growth.size_bytes < request.size_bytes) {
    // put() joins the pages with the free block beside them, which is then large enough.
    heap->pools.put(block, pool);
    block = heap->pools.take(pool, request.size_bytes);
  }
  Found found{heap->pools.trim(block, request.size_bytes), false, nullptr, 0};
  if (request.facade == Facade::kDevice) {
    found.populate = growth.run.base();
    found.populate_bytes = growth.size_bytes;
  }
  return found;
}

// Whether the pages of the pool are in spans of ordinary memory.
bool PageGrower::is_ordinary(const StreamKey& key) const {
  return key.is_ordinary() || (key.facade == Facade::kHost &&
                               machine_.span_memory.host_backing() == HostBacking::kOrdinary);
}

template <class Then>
char* PageGrower::add_span(const Request& request, SpanKind kind, Refusal* refusal, Then then) {
  auto span = std::make_unique<Span>();
  span->facade = request.facade;
  span->device = request.device;
  span->reserved = kind == SpanKind::kReserved;
  span->ordinary = kind == SpanKind::kOrdinary;
  const auto begin = std::chrono::steady_clock::now();
  const RuntimeStatus status = machine_.span_memory.take(request.pages_bytes(), span.get());
  const auto taken = std::chrono::steady_clock::now() - begin;
  *refusal = Refusal::of_driver(status);
  if (!status.ok()) {
    TraceRecorder& trace = machine_.trace;
    trace.call_failed(trace.now(), request.device, nullptr, span->size_bytes, status);
    return nullptr;
  }
  // Sent before other threads see the span, because its pages must be populated under this advice.
  const HintPlan plan = state_.plan_span(span.get());
  const HintStatuses statuses = hints_.send(plan, request.device);
  for (std::size_t index = 0; index < plan.size(); ++index) {
    if (!statuses[index].ok()) {
      HintDispatcher::forget_advice(plan[index].advice, &span->placement);
    }
  }
  const Span memory = *span;
  bool is_known = false;
  try {
    const HeapGuard heap(state_);
    heap->ledger.add_span(memory.base, memory.size_bytes);
    heap->spans.add(std::move(span));
    is_known = true;
    heap->statistics.figures().span_bytes.increase(memory.size_bytes);
    heap->statistics.service_of(request.facade, request.device).span_allocations.add(taken);
    then(heap);
  } catch (const std::bad_alloc&) {
    if (!is_known) {
      {
        const HeapGuard heap(state_);
        heap->ledger.remove_span(memory.base);
      }
      machine_.span_memory.give_back(memory);
    }
    throw;
  }
  return memory.base;
}

char* PageGrower::reserve(const Request& request, Refusal* refusal) {
  return add_span(request, SpanKind::kReserved, refusal, [](const LockedHeap&) {});
}

Found PageGrower::take_at(const LockedHeap& heap, const Request& request, const char* base,
                          HintPlan* plan) {
  Span* span = heap->spans.reserved_span_at(base);
  if (span == nullptr) return {};
  const SpanStore::Run run = SpanStore::find_at(span, base, request.size_bytes);
  return run.span != nullptr ? take(heap, request, {run, request.size_bytes}, plan) : Found{};
}

Found PageGrower::grow(const Request& request, bool any_facade, Refusal* refusal) {
  HintDispatcher::Later hints(hints_, request.device);
  Found found;
  auto take_if_allowed = [&](const LockedHeap& heap) {
    const Growth growth = plan_growth(heap, request, any_facade);
    const SpanStore::Run& run = growth.run;
    const std::size_t touched_bytes = run.span != nullptr ? run.untouched_bytes : growth.size_bytes;
    *refusal =
        limits::check(heap, heap->pools.at(request.pool()).key, touched_bytes, growth.size_bytes);
    SpillLimit::end_growth(heap, request);
    if (refusal->ok() && run.span != nullptr) found = take(heap, request, growth, &hints.plan);
  };
  bool asks_for_sign = false;
  SpanKind kind{};
  {
    const HeapGuard heap(state_);
    kind = kind_for(heap->pools.at(request.pools).key);
    asks_for_sign = spill_limit_.begin_growth(heap, request);
    if (!asks_for_sign) take_if_allowed(heap);
  }
  if (asks_for_sign) {
    const bool is_limited = spill_limit_.is_search();
    const HeapGuard heap(state_);
    if (is_limited) spill_limit_.begin_limit(heap, request);
    take_if_allowed(heap);
  }
  while (found.block == nullptr && refusal->ok()) {
    reclaimer_.release_surplus_spans(request);
    if (add_span(request, kind, refusal, take_if_allowed) == nullptr) break;
  }
  return found;
}

// Returns the first segment of the page. The rest of the page is free.
PageBlock* PageGrower::add_page_for_small(const LockedHeap& heap, Pool& pool,
                                          SmallArenas::Growth most) {
  const bool any_facade = most >= SmallArenas::Growth::kNewPagesOfAnyFacade;
  const StreamKey& key = pool.key;
  const SpanStore::Run run =
      heap->spans.find(key.facade, key.device, kPageBytes, any_facade, is_ordinary(key));
  if (run.span == nullptr || !limits::check(heap, key, run.untouched_bytes, kPageBytes,
                                            limits::beyond_budget_bytes(heap, key, most))
                                  .ok()) {
    return nullptr;
  }
  constexpr std::size_t kPlans = 2;
  hints_.prepare_pending(heap, kPlans);
  const bool is_device = key.facade == Facade::kDevice;
  const DeviceStream user = is_device ? key.device_stream() : DeviceStream{};
  HintPlan plan;
  PageBlock* page = add_run(heap, run, kPageBytes, pool, &plan);
  if (run.untouched_bytes != 0 && heap->used_bytes() > heap->budget_bytes) {
    heap->reserve.take_page(key.facade, key.device);
  }
  hints_.add_pending(heap, plan, key.device, user);
  if (is_device) {
    plan = heap->planner.plan_use(run.base(), kPageBytes, Place::device(key.device));
    hints_.add_pending(heap, plan, key.device, user);
  }
  return heap->pools.trim(page, SmallArena::kSegmentBytes);
}

bool PageGrower::has_page(const Request& request, SmallArenas::Growth most, bool any_facade) const {
  const HeapGuard heap(state_);
  const StreamKey& key = heap->pools.at(request.pools).key;
  const SpanStore::Run run =
      heap->spans.find(key.facade, key.device, kPageBytes, any_facade, is_ordinary(key));
  return run.span != nullptr && limits::check(heap, key, run.untouched_bytes, kPageBytes,
                                              limits::beyond_budget_bytes(heap, key, most))
                                    .ok();
}

bool PageGrower::make_page(const Request& request, SmallArenas::Growth most, Refusal* refusal) {
  if (has_page(request, most, false)) return true;
  SpanKind kind{};
  {
    const HeapGuard heap(state_);
    const StreamKey& key = heap->pools.at(request.pools).key;
    kind = kind_for(key);
    *refusal = limits::check(heap, key, kPageBytes, kPageBytes,
                             limits::beyond_budget_bytes(heap, key, most));
    if (!refusal->ok()) return false;
  }
  return add_span(request, kind, refusal, [](const LockedHeap&) {}) != nullptr;
}

}  // namespace uvm
