// Takes new pages for a pool from a span that has room, or from a new span. The budget, a device's
// limit or the driver may refuse the pages. Thread-safe; functions without a LockedHeap take the
// state lock themselves, and may call the driver.
#pragma once

#include <cstddef>
#include <cstdint>

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

  // Returns a block for the request in new pages, or no block if the pages are refused.
  // `any_facade`: may also take pages of spans that were made for other memory kinds.
  Found grow(const Request& request, bool any_facade, Refusal* refusal);

  // Makes a reserved span of exactly the request's size. Returns its base, or nullptr if the driver
  // refuses it.
  char* reserve(const Request& request, Refusal* refusal);
  // Returns a block for the request at exactly that address of a reserved span, or no block if the
  // pages there are in use. Checks no limit.
  Found take_at(const LockedHeap& heap, const Request& request, const char* base, HintPlan* plan);

  // Called for small objects, under the arenas' locks. Returns a segment of a new page, as a block
  // that is in no index, and adds the page's hints to the pending hints. Returns nullptr if no span
  // has a free page, or if a limit refuses the page.
  PageBlock* add_page_for_small(const LockedHeap& heap, Pool& pool, SmallArenas::Growth most);
  // Returns whether add_page_for_small() would find a page now.
  bool has_page(const Request& request, SmallArenas::Growth most, bool any_facade) const;
  // Makes a span if no span of the request's own memory kind has a free page. Returns whether a
  // page is free now.
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
  enum class SpanKind : std::uint8_t { kManaged, kOrdinary, kReserved };
  bool is_ordinary(const StreamKey& key) const;
  SpanKind kind_for(const StreamKey& key) const {
    return is_ordinary(key) ? SpanKind::kOrdinary : SpanKind::kManaged;
  }
  // Makes a span for the request, adds it under the state lock, and calls `then` under the same
  // lock. Returns its base, or nullptr if the driver refuses the span.
  template <class Then>
  char* add_span(const Request& request, SpanKind kind, Refusal* refusal, Then then);

  Machine& machine_;
  HeapState& state_;
  HintDispatcher& hints_;
  Reclaimer& reclaimer_;
  SpillLimit& spill_limit_;
};

}  // namespace uvm
