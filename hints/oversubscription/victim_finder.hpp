// Finds the page that leaves a device when another page needs its chunk. On a large device each
// search looks at some of the pages, and the next one goes on behind them.
//
// Not thread-safe, as LivePlan. Knows no driver.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "hints/oversubscription/live_policy.hpp"
#include "hints/oversubscription/page_set.hpp"
#include "hints/oversubscription/step_learner.hpp"
#include "hints/oversubscription/use_log.hpp"

namespace uvm::live {

class VictimFinder {
 public:
  VictimFinder(const UseLog& log, const StepLearner& learner, const LivePolicy& policy)
      : log_(log), learner_(learner), policy_(&policy) {}

  const LivePolicy& policy() const { return *policy_; }
  void follow(const LivePolicy& policy) { policy_ = &policy; }

  // By the policy, for a page of `kernel`. Pages that this kernel or a later one uses stay.
  // nullptr: all stay.
  Page* choose(const PageSet& pages, KernelNumber kernel);
  // Whether blocks are expected in the page before that coming kernel: as one step before, where
  // they were allocated or all freed between the kernels at hand and that one.
  bool will_hold_blocks(const Page& page, KernelNumber kernel) const;
  // The first kernel after that one that is expected to use the page; plan::kNever: none.
  KernelNumber next_use(const Page& page, KernelNumber after) const {
    std::uint64_t live_bytes = 0;
    return next_use(page, after, &live_bytes);
  }

 private:
  KernelNumber next_use(const Page& page, KernelNumber after, std::uint64_t* live_bytes) const;
  bool has_small_blocks(const Page& page, KernelNumber kernel) const;
  void take_turn(std::size_t pages);

  const UseLog& log_;
  const StepLearner& learner_;
  const LivePolicy* policy_;
  std::vector<plan::Candidate> candidates_;
  std::vector<Page*> candidate_pages_;
  std::size_t turn_ = 0;  // where the next search begins
};

}  // namespace uvm::live
