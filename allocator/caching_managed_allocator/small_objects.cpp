// Of CachingManagedAllocator: blocks of small objects, and the segments they lie in.
#include <uvmalloc/allocator/caching_managed_allocator.hpp>

#include <algorithm>
#include <array>
#include <new>
#include <utility>

namespace uvm {

// For an arena, with its locks held: a part of the stream's free memory, else of a page that a span
// has ready, under the budget.
SmallArenas::Segment CachingManagedAllocator::take_small_segment(
    PoolIndex pool_index, SmallArenas::Growth most) noexcept {
  std::lock_guard lock(lock_);
  try {
    Pool& pool = pools_.at(pool_index);
    RunBlock* segment = pools_.take_aligned(pool, SmallArena::kSegmentBytes);
    const bool is_new_page = segment == nullptr && most >= SmallArenas::Growth::kNewPages;
    if (is_new_page) {
      segment = add_page_for_small(pool, most);
    }
    if (segment == nullptr) return {};
    try {
      pools_.begin_small_run(segment);
    } catch (const std::bad_alloc&) {
      pools_.put(segment, pools_.at(segment->pool));
      throw;
    }
    book_.small_segment_taken(pool, segment->size_bytes());
    return {segment->address(), is_new_page};
  } catch (const std::bad_alloc&) {
    return {};
  }
}

// With the lock: the first part of the page; the rest is free. nullptr: no span has one, or the
// budget refuses it.
RunBlock* CachingManagedAllocator::add_page_for_small(Pool& pool, SmallArenas::Growth most) {
  const bool any_facade = most >= SmallArenas::Growth::kNewPagesOfAnyFacade;
  const SpanStore::Run run = spans_.find(pool.key.facade, pool.key.device, kPageBytes, any_facade);
  if (run.span == nullptr ||
      !check_limits(pool.key, run.untouched_bytes, kPageBytes, beyond_budget_bytes(most)).ok()) {
    return nullptr;
  }
  // Room for what is planned below: a plan that nobody sends would leave the ledger wrong.
  constexpr std::size_t kPlans = 2;
  const std::size_t wanted = pending_hints_.size() + kPlans;
  if (pending_hints_.capacity() < wanted) pending_hints_.reserve(2 * wanted);
  const bool is_device = pool.key.facade == Facade::kDevice;
  const DeviceStream user = is_device ? pool.key.device_stream() : DeviceStream{};
  HintPlan plan;
  RunBlock* page = add_run(run, kPageBytes, pool, &plan);
  if (!plan.empty()) pending_hints_.push_back({plan, pool.key.device, user});
  if (is_device) {
    plan = planner_.plan_use(run.base(), kPageBytes, Place::device(pool.key.device));
    if (!plan.empty()) pending_hints_.push_back({plan, pool.key.device, user});
  }
  return pools_.trim(page, SmallArena::kSegmentBytes);
}

// Sends what was planned for pages of arenas, whoever took them; not during a capture, after which
// it is still to be sent. The stream `user` waits for the prefetches of its own pages.
void CachingManagedAllocator::send_pending_hints(const DeviceStream& user) {
  std::vector<PendingHints> pending;
  {
    std::lock_guard lock(lock_);
    if (pending_hints_.empty() || is_capturing()) return;
    pending.swap(pending_hints_);
  }
  for (const PendingHints& hints : pending) {
    send(hints.plan, hints.device, {}, hints.user == user ? user : DeviceStream{});
  }
}

// For an arena, with its locks held.
void CachingManagedAllocator::leave_small_segment(void* base) noexcept {
  std::lock_guard lock(lock_);
  RunBlock* segment = pools_.end_small_run(static_cast<char*>(base));
  Pool& pool = pools_.at(segment->pool);
  book_.small_segment_returned(pool, segment->size_bytes());
  pools_.put(segment, pool);
}

// A batch from the arena: one for the caller, the rest for its thread's cache. nullptr: there are
// none.
Block* CachingManagedAllocator::refill(SmallNeed* need) {
  const Request& request = need->request;
  std::array<void*, policy::kRefillBlocks> addresses;
  std::array<Block*, policy::kRefillBlocks> blocks;
  ThreadCache* cache = caches_.mine();
  std::size_t wanted = cache == nullptr ? 1
                                        : std::clamp(policy::kRefillBytes / request.size_bytes,
                                                     std::size_t{1}, policy::kRefillBlocks);
  const auto [count, took_page, thread_is_past] = small_arenas_.allocate(
      request.pool(), request.size_bytes, addresses.data(), wanted, need->most);
  need->took_page |= took_page;
  need->thread_is_past = thread_is_past;
  if (count == 0) return nullptr;
  {
    std::lock_guard lock(lock_);
    for (std::size_t i = 0; i < count; ++i) {
      Block* block = pools_.add_small(static_cast<char*>(addresses[i]), request.size_bytes);
      block->real.origin = Place::device(pools_.span_of(*block)->device);
      block->real.indirect = &block->use;
      block->use.move_to(place_of_use(request.facade, request.device));
      blocks[i] = block;
    }
  }
  if (count > 1) {
    const InsideCache inside(*cache);
    // Backwards: the cache gives the lowest first.
    for (std::size_t i = count; i-- > 1;) cache->put_spare(blocks[i]);
  }
  return blocks[0];
}

void* CachingManagedAllocator::allocate_small(const Request& request) {
  fenced_.drain_some();
  decay_now_and_then();
  SmallNeed need{request};
  Block* block = refill(&need);
  while (block == nullptr) {
    if (need.thread_is_past) {
      Request as_shared = request;
      as_shared.size_bytes = BlockPools::kSmallestShared;
      return allocate_run(as_shared);
    }
    const bool goes_on = make_room_for_small(&need);
    if (!goes_on) throw_if_broken(request, need.status);
    block = refill(&need);
    if (block == nullptr && !goes_on) out_of_memory(request, need.status);
  }
  void* address = nullptr;
  TraceTime at = 0;
  bool has_pending_hints = false;
  {
    std::lock_guard lock(lock_);
    has_pending_hints = !pending_hints_.empty();
    address = occupy(request, block, pools_.home_of(*block));
    at = trace_.now();
  }
  trace_.allocated(at, {request.facade, request.device, address, request.requested_bytes,
                        request.size_bytes, request.stream});
  count_allocation(request, *block, !need.took_page);
  if (has_pending_hints) send_pending_hints(consumer_of(request));
  return address;
}

// Takes the next step that may help the arena to an object. False: there is none left.
bool CachingManagedAllocator::make_room_for_small(SmallNeed* need) {
  while (need->next != SmallStep::kRetry) {
    const SmallStep step = need->next;
    need->next = static_cast<SmallStep>(static_cast<unsigned>(step) + 1);
    if (take_step(step, need)) return true;
  }
  // Others were faster, unless a page that is there cannot be had for another reason.
  return need->retries++ < policy::kSmallRetries && has_room_for_page(*need, true);
}

// Whether it may have helped.
bool CachingManagedAllocator::take_step(SmallStep step, SmallNeed* need) {
  const Request& request = need->request;
  switch (step) {
    case SmallStep::kOtherThreads: {
      bool any_large = false;
      return reclaim(request.pools, ThreadCache::Kept::kSmall, &any_large);
    }
    case SmallStep::kOwnMemory:
      return wait_before_leaving_device(request);
    case SmallStep::kNewPage:
      need->most = SmallArenas::Growth::kNewPages;
      return has_page_for_small(need);
    case SmallStep::kFences:
      reclaim_all_and_fenced(request);
      return true;
    case SmallStep::kDecay:
      if (!decay_under_pressure()) return false;
      has_page_for_small(need);
      return true;
    case SmallStep::kCallbacks:
      if (!need->callbacks) need->callbacks.emplace(pressure_rounds(request));
      need->has_callback_freed = need->callbacks->next();
      if (!need->has_callback_freed) return false;
      reclaim_all_and_fenced(request);
      has_page_for_small(need);
      return true;
    case SmallStep::kRelease:
      release_under_pressure(request, &need->has_released);
      has_page_for_small(need);
      return true;
    case SmallStep::kAnyFacade:
      need->most = SmallArenas::Growth::kNewPagesOfAnyFacade;
      return has_room_for_page(*need, true);
    case SmallStep::kMoreCallbacks:
      if (need->has_callback_freed) need->next = SmallStep::kCallbacks;
      return false;
    case SmallStep::kReserve:
      need->most = SmallArenas::Growth::kBeyondBudget;
      return has_page_for_small(need);
    case SmallStep::kRetry:
      break;
  }
  return false;
}

// What small objects may take beyond the budget when nothing else helps: a page for each facade on
// each device. A program that has used up the budget can then still read a scalar or print a
// tensor, and so free something and go on.
std::size_t CachingManagedAllocator::beyond_budget_bytes(SmallArenas::Growth most) const {
  return most == SmallArenas::Growth::kBeyondBudget ? kFacades * devices_.size() * kPageBytes : 0;
}

// Whether spans have a page that the arena may take.
bool CachingManagedAllocator::has_room_for_page(const SmallNeed& need, bool any_facade) const {
  const Request& request = need.request;
  std::lock_guard lock(lock_);
  const SpanStore::Run run = spans_.find(request.facade, request.device, kPageBytes, any_facade);
  return run.span != nullptr && check_limits(pools_.at(request.pools).key, run.untouched_bytes,
                                             kPageBytes, beyond_budget_bytes(need.most))
                                    .ok();
}

// The same, or there is one now, of a new span; else need->status says why not.
bool CachingManagedAllocator::has_page_for_small(SmallNeed* need) {
  const Request& request = need->request;
  if (has_room_for_page(*need, false)) return true;
  {
    std::lock_guard lock(lock_);
    need->status = check_limits(pools_.at(request.pools).key, kPageBytes, kPageBytes,
                                beyond_budget_bytes(need->most));
    if (!need->status.ok()) return false;
  }
  need->status = add_span(request);
  return need->status.ok();
}

}  // namespace uvm
