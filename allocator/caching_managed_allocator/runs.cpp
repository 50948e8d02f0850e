// Of CachingManagedAllocator: blocks of pages: where one is found, where new pages come from, and
// what is done when there are none.
#include <uvmalloc/allocator/caching_managed_allocator.hpp>

#include <algorithm>
#include <stdexcept>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <uvmalloc/allocator/statistics/holders_table.hpp>

namespace uvm {

void* CachingManagedAllocator::allocate_run(const Request& request) {
  auto cached = [&] {
    std::lock_guard lock(lock_);
    return find_cached(request);
  };
  fenced_.drain_some();
  decay_now_and_then();
  RuntimeStatus status;
  Found found = cached();
  if (found.block == nullptr && !is_capturing()) found = recall(request);
  bool kept_large = false;
  if (found.block == nullptr && reclaim(request.pools, ThreadCache::Kept::kRuns, &kept_large))
    found = cached();
  if (kept_large) keep_no_large(request);
  if (found.block == nullptr) found = borrow(request);
  if (found.block == nullptr && fenced_.drain_finished()) found = cached();
  if (found.block == nullptr && wait_before_leaving_device(request)) found = cached();
  if (found.block == nullptr) {
    found = grow(request, false, &status);
    if (found.block == nullptr) throw_if_broken(request, status);
    if (found.block == nullptr) found = under_pressure(request, &status);
    if (found.block == nullptr) out_of_memory(request, status);
  }
  return hand_out(request, found);
}

// With the lock: what fits among the pool's own blocks, then among the stream's guests.
CachingManagedAllocator::Found CachingManagedAllocator::find_cached(const Request& request) {
  Pool& pool = pools_.at(request.pool());
  RunBlock* block = pools_.take(pool, request.size_bytes);
  if (block == nullptr) block = take_guest(request, request.pools);
  if (block == nullptr) return {};
  block = pools_.trim(block, request.size_bytes);
  // They guarded a whole guest against its home; this caller is ordered by its stream.
  fenced_.drop_fences(block);
  return {block, true};
}

// With the lock: of the stream with those pools. Its pages count with the caller's from now on.
RunBlock* CachingManagedAllocator::take_guest(const Request& request, PoolIndex pools) {
  const std::size_t pages_bytes = round_up(request.size_bytes, kPageBytes);
  if (request.requested_bytes < kWholeBytes ||
      !check_limits(pools_.at(request.pool()).key, 0, pages_bytes).ok()) {
    return nullptr;
  }
  return pools_.take_guest(whole_pool(pools), request.size_bytes);
}

// A block made for this pool whose pages have moved elsewhere, once nobody works on it there.
CachingManagedAllocator::Found CachingManagedAllocator::recall(const Request& request) {
  std::unique_lock lock(lock_);
  RunBlock* block = pools_.take_away(pools_.at(request.pool()), request.size_bytes);
  if (block == nullptr) return {};
  if (!fenced_.shed_fences(block, &lock)) {
    pools_.put(block, pools_.at(block->pool));
    return {};
  }
  block = pools_.trim(block, request.size_bytes);
  ++book_.figures().recalls;
  return {block, true, block->address(), block->size_bytes()};
}

// With the lock: whether the pages that the request would touch may have no room in its device's
// own memory. The host's would be used then.
bool CachingManagedAllocator::would_leave_device(const Request& request) const {
  if (request.facade != Facade::kDevice) return false;
  const auto device = static_cast<std::size_t>(request.device);
  return book_.reserved_bytes(Facade::kDevice, request.device) +
             round_up(request.size_bytes, kPageBytes) >
         budget_.devices[device].soft_budget_bytes;
}

// Waits for blocks of the device that streams still use rather than touch pages in the host's
// memory. False: there is nothing to wait for.
bool CachingManagedAllocator::wait_before_leaving_device(const Request& request) {
  if (is_capturing() || !fenced_.any()) return false;
  {
    std::lock_guard lock(lock_);
    if (!would_leave_device(request)) return false;
  }
  reclaim_all_and_fenced(request);
  return true;
}

// Brings small objects, or all others, that thread caches hold for the stream back to its pools.
// False: there were none.
bool CachingManagedAllocator::reclaim(PoolIndex pools, ThreadCache::Kept kept, bool* any_large) {
  Returning back(*this);
  {
    ThreadCaches::Frozen frozen(caches_);
    caches_.flush(pools, kept, &back.blocks);
  }
  *any_large = false;
  back.blocks.each(
      [&](const Block& block) { *any_large = *any_large || block.size_bytes() >= kLargeBytes; });
  return !back.blocks.empty();
}

void CachingManagedAllocator::reclaim_all() {
  Returning back(*this);
  ThreadCaches::Frozen frozen(caches_);
  caches_.flush_all(&back.blocks);
}

// Whole pages that lie free in the other pool of a host facade.
CachingManagedAllocator::Found CachingManagedAllocator::borrow(const Request& request) {
  if (request.facade == Facade::kDevice) return {};
  const PoolClass other =
      request.pool_class == PoolClass::kShared ? PoolClass::kWhole : PoolClass::kShared;
  const std::size_t size_bytes = round_up(request.size_bytes, kPageBytes);
  std::lock_guard lock(lock_);
  Pool& lender = pools_.at(request.pools + static_cast<PoolIndex>(other));
  const BlockPools::Pages pages = pools_.take_pages(lender, size_bytes);
  if (pages.base == nullptr) return {};
  book_.pages_removed(lender, pages.base, size_bytes);
  Pool& pool = pools_.at(request.pool());
  RunBlock* block = nullptr;
  try {
    book_.prepare(pool);
    block = pools_.add_pages(pages.span, pages.base, size_bytes, pool, pages.placement);
  } catch (const std::bad_alloc&) {
    spans_.give_back(pages.span, pages.base, size_bytes);
    throw;
  }
  book_.pages_added(pool, pages.base, size_bytes);
  return {pools_.trim(block, request.size_bytes), true};
}

// With the lock: a hint that the planner noted as sent was not. What is believed of its range is
// forgotten, so that the next decision hints again.
void CachingManagedAllocator::forget_hint(const Hint& hint) {
  if (hint.kind == HintKind::kPrefetch) {
    ledger_.set(hint.address, hint.size_bytes, Place::nowhere());
    return;
  }
  const Block* block = pools_.find(hint.address);
  if (block == nullptr || block->kind != BlockKind::kWhole || block->address() != hint.address) {
    return;
  }
  forget_advice(hint.advice, pools_.placement_of(*block));
}

void CachingManagedAllocator::forget_advice(Advice advice, SegmentPlacement* placement) {
  switch (advice) {
    case Advice::kSetReadMostly:
    case Advice::kUnsetReadMostly:
      placement->read_mostly = advice == Advice::kUnsetReadMostly;
      break;
    case Advice::kSetPreferredLocation:
    case Advice::kUnsetPreferredLocation:
      placement->preferred = Place::nowhere();
      break;
    case Advice::kSetAccessedBy:
    case Advice::kUnsetAccessedBy:
      placement->accessed_by = Place::nowhere();
      break;
  }
}

// Sends hints, without locks, and traces them. Takes no memory: what was planned is sent. Returns
// how each hint fared.
HintStatuses CachingManagedAllocator::send(const HintPlan& plan, int device, DeviceStream producer,
                                           DeviceStream consumer) {
  const HintStatuses statuses = sender_.send(plan, device, producer, consumer);
  const bool all_sent = std::all_of(statuses.begin(), statuses.end(),
                                    [](const RuntimeStatus& status) { return status.ok(); });
  if (!all_sent) {
    std::lock_guard lock(lock_);
    for (std::size_t place = 0; place < plan.size(); ++place) {
      if (!statuses[place].ok()) forget_hint(plan[place]);
    }
  }
  if (!trace_.enabled()) return statuses;
  for (std::size_t place = 0; place < plan.size(); ++place) {
    const Hint& hint = plan[place];
    if (!statuses[place].ok()) {
      trace_.call_failed(trace_.now(), device, hint.address, hint.size_bytes, statuses[place]);
    } else if (hint.kind == HintKind::kAdvise) {
      trace_.advised(trace_.now(), device, hint.address, hint.size_bytes, hint.advice, hint.place);
    } else {
      trace_.prefetched(trace_.now(), device, hint.address, hint.size_bytes, hint.place,
                        sender_.lane(device));
    }
  }
  return statuses;
}

RuntimeStatus CachingManagedAllocator::add_span(const Request& request) {
  auto span = std::make_unique<Span>();
  span->facade = request.facade;
  span->device = request.device;
  const auto begin = std::chrono::steady_clock::now();
  const RuntimeStatus status =
      span_memory_.take(round_up(request.size_bytes, kPageBytes), span.get());
  const auto taken = std::chrono::steady_clock::now() - begin;
  if (!status.ok()) {
    trace_.call_failed(trace_.now(), request.device, nullptr, span->size_bytes, status);
    return status;
  }
  const Span memory = *span;
  try {
    HintPlan plan;
    {
      std::lock_guard lock(lock_);
      plan = planner_.plan_span(span->base, span->size_bytes, span->facade, span->device,
                                &span->placement);
    }
    // Before anyone can see the span: its pages are to be populated under this advice.
    const HintStatuses statuses = send(plan, request.device);
    for (std::size_t place = 0; place < plan.size(); ++place) {
      if (!statuses[place].ok()) forget_advice(plan[place].advice, &span->placement);
    }
    std::lock_guard lock(lock_);
    ledger_.add_span(span->base, span->size_bytes);
    spans_.add(std::move(span));
    book_.figures().span_bytes.increase(memory.size_bytes);
    book_.service_of(request.facade, request.device).span_allocations.add(taken);
  } catch (const std::bad_alloc&) {
    // Nobody knows of it yet.
    {
      std::lock_guard lock(lock_);
      ledger_.remove_span(memory.base);
    }
    span_memory_.give_back(memory);
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

// With the lock: pages of a span become a block of the pool, in no index. What is to be hinted for
// that goes into the plan. std::bad_alloc: they are the span's again.
RunBlock* CachingManagedAllocator::add_run(const SpanStore::Run& run, std::size_t size_bytes,
                                           Pool& pool, HintPlan* plan) {
  spans_.take(run, size_bytes);
  book_.figures().touched_bytes.increase(run.untouched_bytes);
  const StreamKey& key = pool.key;
  const Place wanted = place_of_use(key.facade, key.device);
  SegmentPlacement placement = run.span->placement;
  RunBlock* block = nullptr;
  try {
    book_.prepare(pool);
    if (run.span->facade != key.facade || run.span->device != key.device) {
      *plan = planner_.plan_move(run.base(), size_bytes, &placement, wanted);
    } else if (wanted.is_host() && is_on_a_device(run.base(), size_bytes)) {
      // Of a block that had moved; what was advised for it is known no more.
      SegmentPlacement of_the_block = placement;
      of_the_block.preferred = Place::nowhere();
      *plan = planner_.plan_move(run.base(), size_bytes, &of_the_block, wanted);
    }
    block = pools_.add_pages(run.span, run.base(), size_bytes, pool, placement);
  } catch (const std::bad_alloc&) {
    for (const Hint& hint : *plan) forget_hint(hint);
    *plan = {};
    spans_.give_back(run.span, run.base(), size_bytes);
    throw;
  }
  book_.pages_added(pool, run.base(), size_bytes);
  if (spans_.touched_bytes() > budget_.hard_bytes / policy::kConserveFromParts ||
      book_.reserved_bytes(key.facade, key.device) > limit_of(key) / policy::kConserveFromParts) {
    pools_.spare_pages();
  }
  return block;
}

// New pages, from a span that has room or a new one; none where the budget or the driver refuses.
CachingManagedAllocator::Found CachingManagedAllocator::grow(const Request& request,
                                                             bool any_facade,
                                                             RuntimeStatus* status) {
  for (;;) {
    PlannedHints hints(*this, request.device);
    Found found;
    {
      std::lock_guard lock(lock_);
      Growth growth = plan_growth(request, any_facade);
      const SpanStore::Run& run = growth.run;
      std::size_t more = run.span != nullptr ? run.untouched_bytes : growth.size_bytes;
      *status = check_limits(pools_.at(request.pool()).key, more, growth.size_bytes);
      if (!status->ok()) return {};
      if (run.span != nullptr) {
        Pool& pool = pools_.at(request.pool());
        RunBlock* block = add_run(run, growth.size_bytes, pool, &hints.plan);
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
    if (found.block != nullptr) return found;
    release_surplus_spans(request);
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
  const bool is_idle = stream_work_.wait_for_device(request.device);
  std::lock_guard lock(lock_);
  if (!is_idle) {
    pools_.put(block, pools_.at(block->pool));
    return {};
  }
  fenced_.drop_fences(block);
  return {pools_.trim(block, request.size_bytes), true};
}

// What has idled long enough goes before anything else does. False: nothing decays.
bool CachingManagedAllocator::decay_under_pressure() {
  if (!decay_.enabled() || is_capturing()) return false;
  decay(std::chrono::steady_clock::now());
  return true;
}

void CachingManagedAllocator::release_under_pressure(const Request& request, bool* has_released) {
  if (!std::exchange(*has_released, true)) {
    std::lock_guard lock(lock_);
    ++book_.figures().pressure_rounds;
    ++book_.service_of(request.facade, request.device).pressure_rounds;
  }
  if (!is_capturing()) release_pages(SIZE_MAX);
}

// What is free anywhere, or is once the devices are through with it.
CachingManagedAllocator::Found CachingManagedAllocator::search_under_pressure(
    const Request& request) {
  reclaim_all_and_fenced(request);
  Found found;
  {
    std::lock_guard lock(lock_);
    found = find_cached(request);
  }
  if (found.block == nullptr && !is_capturing()) found = recall(request);
  if (found.block == nullptr) found = borrow(request);
  if (found.block == nullptr && !is_capturing()) found = steal_from_other_streams(request);
  return found;
}

CachingManagedAllocator::Found CachingManagedAllocator::release_and_grow(const Request& request,
                                                                         bool* has_released,
                                                                         RuntimeStatus* status) {
  {
    std::lock_guard lock(lock_);
    pools_.spare_pages();
  }
  release_under_pressure(request, has_released);
  if (Found found = grow(request, false, status); found.block != nullptr) return found;
  return grow(request, true, status);
}

// Whether the budget would have room if only blocks with callers took some of it. That spares
// retries which cannot succeed while callbacks free little at a time.
bool CachingManagedAllocator::has_room_if_all_is_free(const Request& request) {
  const auto live_bytes = static_cast<std::size_t>(std::max<std::int64_t>(block_bytes().live, 0));
  const std::size_t most_bytes = budget_bytes();
  return live_bytes <= most_bytes && request.size_bytes <= most_bytes - live_bytes;
}

CachingManagedAllocator::Found CachingManagedAllocator::under_pressure(const Request& request,
                                                                       RuntimeStatus* status) {
  if (Found found = search_under_pressure(request); found.block != nullptr) return found;
  if (decay_under_pressure()) {
    if (Found found = grow(request, false, status); found.block != nullptr) return found;
  }
  PressureRounds callbacks = pressure_rounds(request);
  bool is_searched = true;  // since a callback freed something
  bool has_released = false;
  for (bool more = true; more;) {
    more = callbacks.next();
    is_searched = is_searched && !more;
    if (more && !has_room_if_all_is_free(request)) continue;
    if (!std::exchange(is_searched, true)) {
      if (Found found = search_under_pressure(request); found.block != nullptr) return found;
    }
    Found found = release_and_grow(request, &has_released, status);
    if (found.block != nullptr) return found;
  }
  return {};
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
    address = occupy(request, found.block, found.block->home);
    at = trace_.now();
  }
  trace_.allocated(at, {request.facade, request.device, address, request.requested_bytes,
                        found.block->size_bytes(), request.stream});
  count_allocation(request, *found.block, found.from_cache);
  // A captured stream cannot wait for the lane: its pages are then populated by first use.
  if (found.populate != nullptr && !is_capturing()) {
    HintPlan plan;
    {
      std::lock_guard lock(lock_);
      plan = planner_.plan_use(found.populate, found.populate_bytes,
                               place_of_use(request.facade, request.device));
    }
    send(plan, request.device, {}, consumer_of(request));
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

// Not a limit of ours but the driver, or for ordinary memory the kernel, has refused a span.
std::string CachingManagedAllocator::advice_on_refusal() const {
  const Statistics now = statistics();
  const std::size_t unused_bytes =
      now.budget_bytes - std::min<std::size_t>(now.touched_bytes.current, now.budget_bytes);
  return fmt::format(
      "With {} of the budget unused, address space has run out (this allocator's spans take {}, "
      "see ulimit -v), or memory of the driver's own. Smaller spans ({}) or fewer allocators take "
      "less address space. ",
      format_size(unused_bytes), format_size(now.span_bytes.current),
      configuration_.name_of("UVMALLOC_SPAN_SIZE", "span_bytes"));
}

std::string CachingManagedAllocator::advice_on(const Request& request,
                                               const RuntimeStatus& status) const {
  if (request.requested_bytes > kLargestRequest) {
    return fmt::format("A block has at most {}. Is the size right?", format_size(kLargestRequest));
  }
  std::string who = "The driver gives no more. ";
  std::string more;
  if (status.call == kOverBudget.call) {
    who.clear();
    more = fmt::format("To allow more, raise {}. ",
                       configuration_.name_of("UVMALLOC_BUDGET", "budget_bytes"));
  } else if (status.call == kOverDeviceLimit.call) {
    std::lock_guard lock(lock_);
    who = fmt::format("Device {} may hold {} here. ", request.device,
                      format_size(device_limits_[static_cast<std::size_t>(request.device)]));
    more = fmt::format("To allow more, raise {}, or the limit that the program has set. ",
                       configuration_.name_of("UVMALLOC_DEVICE_BUDGET", "device_budget_bytes"));
  } else if (status.error == RuntimeError::kOutOfMemory) {
    more = advice_on_refusal();
  }
  const std::string_view tried =
      exceeds_limits(request) ? "No free makes room for a request of that size. "
                              : "Everything cached was given back and the request tried again. ";
  return fmt::format("{}{}{}To need less, {}.", who, tried, more,
                     configuration_.name_of("use smaller batches or free tensors first",
                                            "ask for less or free blocks first"));
}

void CachingManagedAllocator::out_of_memory(const Request& request, const RuntimeStatus& status) {
  trace_.out_of_memory(trace_.now(),
                       {request.facade, request.device, nullptr, request.requested_bytes,
                        request.size_bytes, request.stream},
                       status);
  const std::string table = holders_table(statistics());
  {
    std::lock_guard lock(lock_);
    ++book_.figures().out_of_memory;
    ++book_.service_of(request.facade, request.device).out_of_memory;
  }
  const std::string advice = advice_on(request, status);
  throw OutOfMemoryError(
      request.requested_bytes,
      fmt::format(
          "uvmalloc: out of memory: {} asked of the {} facade on device {} cannot be had ({}).\n{}"
          "{}",
          format_size(request.requested_bytes), to_string(request.facade), request.device,
          status.ok() ? "no memory" : std::string(status.native_name), table, advice));
}

}  // namespace uvm
