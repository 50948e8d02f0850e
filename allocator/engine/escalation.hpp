// The steps for a request that finds no free block: one table for small and large requests,
// cheapest first. After each step that may have helped, the request is retried.
//
//   step             what the step does                                         retried in
//   other threads    all threads return their cached blocks of the stream       free memory
//   other class      takes whole pages from the host stream's other pool        free memory
//   over fences      collects blocks if the streams that used them are done     free memory
//   lead             waits if the host is too far ahead of a device             free memory
//   own memory       waits for fences before host memory is used for a device   free memory
//   new pages        takes pages of spans, within the budget                    new pages
//   all fences       all threads return their caches; waits for all fences      free memory
//   other class      as above
//   other streams    takes a block (a small object: a page) of another stream   free memory
//   idle             gives back memory that was idle for long (UVMALLOC_DECAY)  new pages
//   callbacks        calls the next pressure callback (pressure_rounds.hpp)     free memory
//   other class, other streams: as above, if a callback has freed memory
//   release          gives free pages back to spans, empty spans to the driver  new pages
//   other kinds      takes pages of spans of other memory kinds                 new pages
//   next callback    repeats from "callbacks" if a callback has freed memory
//   reserve          small objects: takes a few pages beyond the budget         new pages
//   again            small objects: retries, a few times, if other threads took the page
//
// During a capture no step may wait; kSteps marks the steps that are skipped.
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
  const bool is_small;  // the caller retries the request in an arena after each step
  Found found = {};     // if not small: the block that a step has found
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

  // Runs steps until one may have helped a small request, or has found a block for a larger one.
  // Returns false if no step is left. Throws std::runtime_error if the driver is broken. The caller
  // must hold no lock.
  bool climb(Demand* demand);

 private:
  enum class Retry : unsigned char { kInFreeMemory, kWithNewPages };
  enum class Of : unsigned char { kAll, kSmall };
  using Action = bool (Escalation::*)(Demand*);  // returns whether the step may have helped
  struct Step {
    const char* name;
    bool may_run_in_capture;
    Of of;
    Action run;
    Retry retry;
    // From this step on, arenas may take memory of this kind.
    SmallArenas::Growth grows_into = SmallArenas::Growth::kFreeMemory;
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
