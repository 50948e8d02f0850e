// Finds the page that is evicted from a device when another page needs its chunk. On a large device
// each search looks at some of the pages, and the next search continues after these pages.
//
// Not thread-safe, like LivePlan. Calls no driver.
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

  // Chooses a page by the policy, to make room for a page of `kernel`. Does not choose pages that
  // this kernel or a later kernel in the log uses. Returns nullptr if no page can be evicted.
  Page* choose(const PageSet& pages, KernelNumber kernel);
  // Returns whether blocks are expected in the page before that coming kernel. If blocks of the
  // page were allocated or all freed one step before, between the current kernel and that kernel,
  // the same is expected again.
  bool will_hold_blocks(const Page& page, KernelNumber kernel) const;
  // Returns the first kernel after `after` that is expected to use the page; plan::kNever if there
  // is none.
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
