#include "allocator/engine/escalation.hpp"

#include <algorithm>
#include <utility>

#include "allocator/inspection/out_of_memory_report.hpp"

namespace uvm {

const std::array<Escalation::Step, 18> Escalation::kSteps = {{
    {"other threads", true, Of::kAll, &Escalation::flush_stream, Retry::kInFreeMemory},
    {"other class", true, Of::kAll, &Escalation::borrow, Retry::kInFreeMemory},
    {"over fences", false, Of::kAll, &Escalation::drain_finished, Retry::kInFreeMemory},
    {"lead", false, Of::kAll, &Escalation::hold_lead, Retry::kInFreeMemory},
    {"own memory", false, Of::kAll, &Escalation::stay_on_device, Retry::kInFreeMemory},
    {"new pages", true, Of::kAll, &Escalation::make_page, Retry::kWithNewPages, kNewPages},
    {"all fences", true, Of::kAll, &Escalation::drain_all, Retry::kInFreeMemory},
    {"other class", true, Of::kAll, &Escalation::borrow, Retry::kInFreeMemory},
    {"other streams", false, Of::kAll, &Escalation::steal, Retry::kInFreeMemory},
    {"idle", false, Of::kAll, &Escalation::decay, Retry::kWithNewPages},
    {"callbacks", true, Of::kAll, &Escalation::call_back, Retry::kInFreeMemory},
    {"other class", true, Of::kAll, &Escalation::borrow, Retry::kInFreeMemory},
    {"other streams", false, Of::kAll, &Escalation::steal, Retry::kInFreeMemory},
    {"release", true, Of::kAll, &Escalation::release, Retry::kWithNewPages},
    {"other kinds", true, Of::kAll, &Escalation::find_page, Retry::kWithNewPages, kAnyFacade},
    {"next callback", true, Of::kAll, &Escalation::repeat_callbacks, Retry::kInFreeMemory},
    {"reserve", true, Of::kSmall, &Escalation::make_page, Retry::kWithNewPages, kReserve},
    {"again", true, Of::kSmall, &Escalation::again, Retry::kWithNewPages},
}};

bool Escalation::climb(Demand* demand) {
  while (demand->next < kSteps.size()) {
    const Step& step = kSteps[demand->next++];
    if (!step.may_run_in_capture && state_.is_capturing()) continue;
    if (step.of == Of::kSmall && !demand->is_small) continue;
    demand->allowed_growth = std::max(demand->allowed_growth, step.grows_into);
    const bool may_help = (this->*step.run)(demand);
    if (!demand->refusal.ok()) OutOfMemoryReport::throw_if_broken(demand->request, demand->refusal);
    if (!may_help) continue;
    if (demand->is_small) return true;
    retry(step, demand);
    if (demand->found.block != nullptr) return true;
  }
  return false;
}

// Continues with the step whose action is `action`. Only one step may have this action.
void Escalation::go_on_with(Action action, Demand* demand) {
  const auto step = std::find_if(kSteps.begin(), kSteps.end(),
                                 [&](const Step& other) { return other.run == action; });
  demand->next = static_cast<std::size_t>(step - kSteps.begin());
}

void Escalation::retry(const Step& step, Demand* demand) {
  if (demand->found.block != nullptr) return;
  if (step.retry == Retry::kInFreeMemory) {
    demand->found = finder_.find(demand->request);
    return;
  }
  const bool any_facade = demand->allowed_growth >= SmallArenas::Growth::kNewPagesOfAnyFacade;
  demand->found = grower_.grow(demand->request, any_facade, &demand->refusal);
  if (demand->found.block == nullptr) {
    OutOfMemoryReport::throw_if_broken(demand->request, demand->refusal);
  }
}

// Makes a page for the arena of a small object. For other requests retry() takes pages.
bool Escalation::make_page(Demand* demand) {
  return !demand->is_small ||
         grower_.make_page(demand->request, demand->allowed_growth, &demand->refusal);
}

bool Escalation::flush_stream(Demand* demand) {
  const auto kept = demand->is_small ? CachedKind::kSmall : CachedKind::kRuns;
  bool any_large = false;
  const bool any = returner_.flush(demand->request.pools, kept, &any_large);
  if (any_large) large_.stop(demand->request);
  return any;
}

bool Escalation::borrow(Demand* demand) {
  PageBlock* block = finder_.borrow(demand->request);
  if (block == nullptr) return false;
  const HeapGuard heap(state_);
  if (demand->is_small) {
    heap->pools.put(block, heap->pools.at(block->pool));
  } else {
    demand->found = {heap->pools.trim(block, demand->request.size_bytes), true};
  }
  return true;
}

bool Escalation::drain_finished(Demand*) {
  return fenced_.drain_finished();
}

// Small objects never use displaced blocks.
bool Escalation::hold_lead(Demand* demand) {
  return !demand->is_small && displaced_.hold_lead(demand->request);
}

// Waits for all fences if the request would otherwise use the host's memory.
bool Escalation::stay_on_device(Demand* demand) {
  if (!fenced_.any()) return false;
  {
    const HeapGuard heap(state_);
    if (!limits::would_leave_device(heap, demand->request)) return false;
  }
  reclaimer_.reclaim_all_and_fenced(demand->request);
  return true;
}

bool Escalation::drain_all(Demand* demand) {
  reclaimer_.reclaim_all_and_fenced(demand->request);
  return true;
}

bool Escalation::steal(Demand* demand) {
  if (demand->is_small) return finder_.steal_page(demand->request);
  demand->found = finder_.steal(demand->request);
  return demand->found.block != nullptr;
}

bool Escalation::decay(Demand* demand) {
  if (!decay_.under_pressure()) return false;
  make_page(demand);
  return true;
}

// Calls callbacks until the memory that they have freed and all cached memory together may be
// enough.
bool Escalation::call_back(Demand* demand) {
  if (!demand->callbacks) demand->callbacks.emplace(callbacks_.rounds(demand->request));
  bool has_any_freed = false;
  do {
    demand->has_callback_freed = demand->callbacks->next();
    has_any_freed |= demand->has_callback_freed;
  } while (demand->has_callback_freed && !callbacks_.has_room_if_all_is_free(demand->request));
  if (!has_any_freed) {
    go_on_with(&Escalation::release, demand);  // nothing new to borrow or steal
    return false;
  }
  reclaimer_.reclaim_all_and_fenced(demand->request);
  make_page(demand);
  return true;
}

bool Escalation::release(Demand* demand) {
  const Request& request = demand->request;
  {
    const HeapGuard heap(state_);
    heap->pools.conserve_pages();
    if (!std::exchange(demand->has_released, true)) {
      ++heap->statistics.figures().pressure_rounds;
      ++heap->statistics.service_of(request.facade, request.device).pressure_rounds;
    }
  }
  if (!state_.is_capturing()) reclaimer_.release_pages(SIZE_MAX);
  make_page(demand);
  return true;
}

// For a small object: returns whether a span of any memory kind has a page.
bool Escalation::find_page(Demand* demand) {
  return !demand->is_small || grower_.has_page(demand->request, demand->allowed_growth, true);
}

bool Escalation::repeat_callbacks(Demand* demand) {
  if (!demand->has_callback_freed) return false;
  go_on_with(&Escalation::call_back, demand);
  return false;
}

// Retries if a page is free, because other threads may have taken the page of the last try. Retries
// only a few times, because the request may fail for another reason.
bool Escalation::again(Demand* demand) {
  const bool may_help = demand->retries++ < policy::kSmallRetries && find_page(demand);
  if (may_help) go_on_with(&Escalation::again, demand);
  return may_help;
}

}  // namespace uvm
