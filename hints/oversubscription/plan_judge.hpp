// Decides whether to follow the plan's predictions, or `lru` instead. Two conditions end the
// predictions for a time, which doubles if the predictions soon end again:
//
// - The plan has moved more pages than `lru` would have (ShadowLru).
// - Its steps take longer than a step that the program ran by `lru` when the step became known.
//
// If steps are lost soon, and the plan has moved more pages for them than `lru`, the plan follows
// the next step only after a time that doubles each time. So wrong predictions cost a bounded
// number of moves, however often they recur. Counts of kernels and pages are totals. Not
// thread-safe. Calls no driver.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "hints/oversubscription/policy.hpp"
#include "hints/oversubscription/thrash_detector.hpp"

namespace uvm::live {

class PlanJudge {
 public:
  // Call this after a kernel was added. `step_kernels` is 0 if no step is known.
  void kernel_added(std::uint64_t step_kernels, std::uint64_t moved_pages,
                    std::uint64_t moved_by_lru, std::uint64_t chunks);
  void step_took(const ThrashDetector::Step& step);
  bool trusts_plan() const { return trusts_plan_; }

 private:
  // A step that the program repeats, by its number of kernels.
  struct Step {
    std::uint64_t kernels = 0;
    std::optional<StepClock::Time> lru_time;
  };

  // Pages that the plan has moved, and pages that `lru` would have moved.
  struct Moved {
    std::uint64_t by_plan = 0;
    std::uint64_t by_lru = 0;
  };

  Moved moved_in_step() const {
    return {moved_.by_plan - moved_before_step_.by_plan, moved_.by_lru - moved_before_step_.by_lru};
  }
  void begin_step();
  void end_step(std::uint64_t chunks);
  void know_step(std::uint64_t kernels);
  void lose_step();
  bool waits() const;
  void set_trust();
  void pause();

  std::uint64_t kernels_ = 0;
  std::array<Step, policy::kKnownSteps> steps_;
  std::size_t newest_step_ = 0;
  Step* step_ = steps_.data();  // the last known step
  bool is_known_ = false;
  std::uint64_t known_since_ = 0;
  int lost_soon_ = 0;  // consecutive lost steps for which the plan had moved more

  bool trusts_plan_ = true;
  std::uint64_t changed_ = 0;  // kernels when trusts_plan_ last changed
  std::uint64_t changed_before_ = 0;
  std::uint64_t paused_until_ = 0;
  std::uint64_t pause_kernels_ = 0;  // the length of the last pause

  Moved moved_;
  Moved moved_before_step_;
  std::uint64_t kernels_of_step_ = 0;  // kernels of the current step
  std::uint64_t moved_more_ = 0;       // excess over `lru`, since a step without an excess
  double plan_ns_ = 0;                 // mean of timed steps; each weighs half of the next
  int plan_steps_ = 0;
};

}  // namespace uvm::live
