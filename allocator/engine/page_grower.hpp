// Takes new pages for a pool from a span that has room, or from a new span. The budget, a device's
// limit or the driver may refuse them. Thread-safe; functions without a LockedHeap take the state
// lock themselves, and may call the driver.
#pragma once

#include <cstddef>

#include "allocator/placement/spill_limit.hpp"
#include "allocator/reclaim/reclaimer.hpp"
#include "allocator/state/hint_dispatcher.hpp"
#include "allocator/state/limits.hpp"
#include "allocator/state/request.hpp"

namespace uvm {

class PageGrower {
 public:
  PageGrower(Machine& machine, HeapState& state, HintDispatcher& hints, Reclaimer& reclaimer,
             SpillLimit& spill_limit)
      : machine_(machine),
        state_(state),
        hints_(hints),
        reclaimer_(reclaimer),
        spill_limit_(spill_limit) {}
  PageGrower(const PageGrower&) = delete;
  PageGrower& operator=(const PageGrower&) = delete;

  // Returns a block for the request in new pages; none if they are refused. `any_facade`: may also
  // take pages of spans made for other memory kinds.
  Found grow(const Request& request, bool any_facade, Refusal* refusal);

  // For small objects, under the arenas' locks: returns a page, as a block in no index, with its
  // hints pending. nullptr: no span has a free page, or a limit refuses it.
  PageBlock* add_page_for_small(const LockedHeap& heap, Pool& pool, SmallArenas::Growth most);
  // Whether add_page_for_small() would find a page now.
  bool has_page(const Request& request, SmallArenas::Growth most, bool any_facade) const;
  // As has_page(), for spans of the request's own memory kind. Makes a new span if none has a page.
  bool make_page(const Request& request, SmallArenas::Growth most, Refusal* refusal);

 private:
  struct Growth {
    SpanStore::Run run;
    std::size_t size_bytes = 0;
  };
  Growth plan_growth(const LockedHeap& heap, const Request& request, bool any_facade) const;
  Found take(const LockedHeap& heap, const Request& request, const Growth& growth, HintPlan* plan);
  PageBlock* add_run(const LockedHeap& heap, const SpanStore::Run& run, std::size_t size_bytes,
                     Pool& pool, HintPlan* plan);
  bool is_on_a_device(const LockedHeap& heap, const void* address, std::size_t size_bytes) const;
  // Makes a span for the request, and calls `then` in the turn of the lock that adds it. False: it
  // is refused.
  template <class Then>
  bool add_span(const Request& request, Refusal* refusal, Then then);

  Machine& machine_;
  HeapState& state_;
  HintDispatcher& hints_;
  Reclaimer& reclaimer_;
  SpillLimit& spill_limit_;
};

}  // namespace uvm
