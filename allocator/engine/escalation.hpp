// What is done when a request finds nothing: one table of steps for small and large requests,
// cheapest first. After each step that may have helped, the request is retried.
//
//   a step           what it does                                              retried in
//   other threads    all threads return what they cache of the stream          free memory
//   other class      whole pages of a host facade's other pool                 free memory
//   over fences      blocks whose streams are through                          free memory
//   own memory       waits for fences before a device's own memory is exceeded free memory
//   new pages        pages of spans, under the budget                          new pages
//   all fences       all threads return what they cache; waits for all fences  free memory
//   other class      as above
//   other streams    a block, or for a small object a page, of another stream  free memory
//   idle             what has been idle long enough goes back (UVMALLOC_DECAY) new pages
//   callbacks        the next pressure callback (pressure_rounds.hpp)          free memory
//   other class, other streams: as above, if a callback has freed something
//   release          all free pages go back to spans, empty spans to the driver new pages
//   any facade       pages of spans of other facades                           new pages
//   next callback    from "callbacks" on again, if one has freed something
//   reserve          small objects: a few pages beyond the budget              new pages
//   again            small objects: other threads took what was made; again, a few times
//
// During a capture nothing waits, and the table says which steps are left out.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <optional>

#include <uvmalloc/allocator/engine/block_counts.hpp>
#include <uvmalloc/allocator/engine/block_finder.hpp>
#include <uvmalloc/allocator/engine/block_returner.hpp>
#include <uvmalloc/allocator/engine/idle_decay.hpp>
#include <uvmalloc/allocator/engine/large_block_caching.hpp>
#include <uvmalloc/allocator/engine/limits.hpp>
#include <uvmalloc/allocator/engine/page_grower.hpp>
#include <uvmalloc/allocator/engine/pressure_rounds.hpp>
#include <uvmalloc/allocator/engine/reclaimer.hpp>

namespace uvm {

// A request that has found nothing yet, and how far it has come.
struct Demand {
  Demand(const Request& wanted, bool is_of_small) : request(wanted), is_small(is_of_small) {}

  const Request& request;
  const bool is_small;  // served by an arena, which its caller asks again after each step
  Found found = {};     // otherwise: what a step has found
  SmallArenas::Growth most = SmallArenas::Growth::kFreeMemory;
  Refusal refusal = {};  // why new pages could not be had
  std::size_t next = 0;  // step
  unsigned retries = 0;
  std::optional<PressureRounds> callbacks = {};
  bool has_callback_freed = false;
  bool has_released = false;
};

class Escalation {
 public:
  Escalation(Machine& machine, HeapState& state, FencedBlocks& fenced, BlockReturner& returner,
             LargeBlockCaching& large, BlockCounts& counts, BlockFinder& finder, PageGrower& grower,
             Reclaimer& reclaimer, IdleDecay& decay)
      : machine_(machine),
        state_(state),
        fenced_(fenced),
        returner_(returner),
        large_(large),
        counts_(counts),
        finder_(finder),
        grower_(grower),
        reclaimer_(reclaimer),
        decay_(decay) {}
  Escalation(const Escalation&) = delete;
  Escalation& operator=(const Escalation&) = delete;

  // Takes steps until one may have helped a small request, or has found a block for another. False:
  // none is left. std::runtime_error where the driver is broken.
  bool climb(Demand* demand);

  void add_callback(PressureRounds::Callback callback);

 private:
  enum class Retry : unsigned char { kInFreeMemory, kWithNewPages };
  enum class Of : unsigned char { kAll, kSmall };
  using Action = bool (Escalation::*)(Demand*);  // whether it may have helped
  struct Step {
    const char* name;
    bool may_run_in_capture;
    Of of;
    Action run;
    Retry retry;
  };
  static const std::array<Step, 17> kSteps;

  bool flush_stream(Demand* demand);
  bool borrow(Demand* demand);
  bool drain_finished(Demand* demand);
  bool stay_on_device(Demand* demand);
  bool allow_new_pages(Demand* demand);
  bool drain_all(Demand* demand);
  bool steal(Demand* demand);
  bool decay(Demand* demand);
  bool call_back(Demand* demand);
  bool release(Demand* demand);
  bool allow_any_facade(Demand* demand);
  bool repeat_callbacks(Demand* demand);
  bool allow_reserve(Demand* demand);
  bool again(Demand* demand);

  static void go_on_with(Action action, Demand* demand);
  void retry(const Step& step, Demand* demand);
  bool make_page(Demand* demand);
  bool has_room_if_all_is_free(const Request& request);
  PressureRounds pressure_rounds(const Request& request);

  Machine& machine_;
  HeapState& state_;
  FencedBlocks& fenced_;
  BlockReturner& returner_;
  LargeBlockCaching& large_;
  BlockCounts& counts_;
  BlockFinder& finder_;
  PageGrower& grower_;
  Reclaimer& reclaimer_;
  IdleDecay& decay_;
};

}  // namespace uvm
