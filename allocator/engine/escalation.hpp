// The steps for a request that finds nothing: one table for small and large requests, cheapest
// first. After each step that may have helped, the request is retried.
//
//   a step           what it does                                              retried in
//   other threads    all threads return what they cache of the stream          free memory
//   other class      whole pages of a host stream's other pool                 free memory
//   over fences      blocks whose streams have finished                        free memory
//   lead             waits if the host is too far ahead of a device            free memory
//   own memory       waits for fences before a device's own memory is exceeded free memory
//   new pages        pages of spans, under the budget                          new pages
//   all fences       all threads return what they cache; waits for all fences  free memory
//   other class      as above
//   other streams    a block, or for a small object a page, of another stream  free memory
//   idle             memory that is due goes back (UVMALLOC_DECAY)             new pages
//   callbacks        the next pressure callback (pressure_rounds.hpp)          free memory
//   other class, other streams: as above, if a callback has freed something
//   release          all free pages go back to spans, empty spans to the driver new pages
//   any facade       pages of spans of other memory kinds                      new pages
//   next callback    from "callbacks" on again, if one has freed something
//   reserve          small objects: a few pages beyond the budget              new pages
//   again            small objects, if other threads took the page; a few times
//
// During a capture nothing waits; the table says which steps are left out.
#pragma once

#include <array>
#include <cstddef>
#include <optional>

#include "allocator/engine/block_finder.hpp"
#include "allocator/engine/page_grower.hpp"
#include "allocator/reclaim/idle_decay.hpp"
#include "allocator/reclaim/large_block_caching.hpp"
#include "allocator/reclaim/pressure_callbacks.hpp"
#include "allocator/reclaim/reclaimer.hpp"
#include "allocator/state/block_returner.hpp"
#include "allocator/state/limits.hpp"

namespace uvm {

// A request that has found no block yet, and its progress through the steps.
struct Demand {
  Demand(const Request& wanted, bool is_of_small) : request(wanted), is_small(is_of_small) {}

  const Request& request;
  const bool is_small;  // an arena serves it; the caller retries there after each step
  Found found = {};     // for other requests: the block that a step has found
  SmallArenas::Growth allowed_growth = SmallArenas::Growth::kFreeMemory;
  Refusal refusal = {};  // why new pages were refused
  std::size_t next = 0;  // index of the next step
  unsigned retries = 0;
  std::optional<PressureRounds> callbacks = {};
  bool has_callback_freed = false;
  bool has_released = false;
};

class Escalation {
 public:
  Escalation(HeapState& state, FencedBlocks& fenced, DisplacedBlocks& displaced,
             BlockReturner& returner, LargeBlockCaching& large, PressureCallbacks& callbacks,
             BlockFinder& finder, PageGrower& grower, Reclaimer& reclaimer, IdleDecay& decay)
      : state_(state),
        fenced_(fenced),
        displaced_(displaced),
        returner_(returner),
        large_(large),
        callbacks_(callbacks),
        finder_(finder),
        grower_(grower),
        reclaimer_(reclaimer),
        decay_(decay) {}
  Escalation(const Escalation&) = delete;
  Escalation& operator=(const Escalation&) = delete;

  // Takes steps until one may have helped a small request, or has found a block for another. False:
  // no step is left. std::runtime_error if the driver is broken. Called without locks.
  bool climb(Demand* demand);

 private:
  enum class Retry : unsigned char { kInFreeMemory, kWithNewPages };
  enum class Of : unsigned char { kAll, kSmall };
  using Action = bool (Escalation::*)(Demand*);  // returns whether it may have helped
  struct Step {
    const char* name;
    bool may_run_in_capture;
    Of of;
    Action run;
    Retry retry;
    SmallArenas::Growth grows_into = SmallArenas::Growth::kFreeMemory;  // from this step on
  };
  static constexpr auto kNewPages = SmallArenas::Growth::kNewPages;
  static constexpr auto kAnyFacade = SmallArenas::Growth::kNewPagesOfAnyFacade;
  static constexpr auto kReserve = SmallArenas::Growth::kBeyondBudget;
  static const std::array<Step, 18> kSteps;

  bool make_page(Demand* demand);
  bool flush_stream(Demand* demand);
  bool borrow(Demand* demand);
  bool drain_finished(Demand* demand);
  bool hold_lead(Demand* demand);
  bool stay_on_device(Demand* demand);
  bool drain_all(Demand* demand);
  bool steal(Demand* demand);
  bool decay(Demand* demand);
  bool call_back(Demand* demand);
  bool release(Demand* demand);
  bool find_page(Demand* demand);
  bool repeat_callbacks(Demand* demand);
  bool again(Demand* demand);

  static void go_on_with(Action action, Demand* demand);
  void retry(const Step& step, Demand* demand);

  HeapState& state_;
  FencedBlocks& fenced_;
  DisplacedBlocks& displaced_;
  BlockReturner& returner_;
  LargeBlockCaching& large_;
  PressureCallbacks& callbacks_;
  BlockFinder& finder_;
  PageGrower& grower_;
  Reclaimer& reclaimer_;
  IdleDecay& decay_;
};

}  // namespace uvm
