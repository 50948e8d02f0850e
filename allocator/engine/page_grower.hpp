// Takes new pages for a pool from a span that has room, or from a new span. The budget, a device's
// limit or the driver may refuse them.
#pragma once

#include <cstddef>

#include "allocator/engine/hint_dispatcher.hpp"
#include "allocator/engine/limits.hpp"
#include "allocator/engine/reclaimer.hpp"
#include "allocator/engine/request.hpp"
#include "allocator/engine/spill_limit.hpp"

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

  // A block for the request in new pages; none if they are refused. `any_facade`: also pages of
  // spans that were made for other facades.
  Found grow(const Request& request, bool any_facade, Refusal* refusal);

  // For small objects, with the arenas' locks: a page, as a block in no index. Its hints are
  // pending. nullptr: no span has a free page, or it is refused.
  RunBlock* add_page_for_small(const LockedHeap& heap, Pool& pool, SmallArenas::Growth most);
  // Whether add_page_for_small() would find one now.
  bool has_page(const Request& request, SmallArenas::Growth most, bool any_facade) const;
  // The same for the request's own facade. If no span has a page, a new span is made.
  bool make_page(const Request& request, SmallArenas::Growth most, Refusal* refusal);

 private:
  struct Growth {
    SpanStore::Run run;
    std::size_t size_bytes = 0;
  };
  Growth plan_growth(const LockedHeap& heap, const Request& request, bool any_facade) const;
  Found take(const LockedHeap& heap, const Request& request, const Growth& growth, HintPlan* plan);
  RunBlock* add_run(const LockedHeap& heap, const SpanStore::Run& run, std::size_t size_bytes,
                    Pool& pool, HintPlan* plan);
  bool is_on_a_device(const LockedHeap& heap, const void* address, std::size_t size_bytes) const;
  // A new span for the request; `then` is called with it in the same cycle of the lock. False: it
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
