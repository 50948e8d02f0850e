// What the learned step does with a page. If the step only reads a page, the host may keep the
// page's bytes while the page is on the device, so that the page is evicted without a copy. If a
// kernel touches each byte of a page once, the page may stay on the host for that kernel.
//
// Not thread-safe, like UseLog. Calls no driver.
#pragma once

#include "hints/oversubscription/page_set.hpp"
#include "hints/oversubscription/step_learner.hpp"
#include "hints/oversubscription/use_log.hpp"

namespace uvm::live {

class PageUses {
 public:
  PageUses(const UseLog& log, const StepLearner& learner) : log_(log), learner_(learner) {}

  // While the learner predicts: returns whether all blocks of the page are older than a step, and
  // no kernel of the last step has written to the page. Blocks must be older than a step, because a
  // new block is written for the first time, and the log does not show this.
  bool are_reads(const Page& page) const;
  // Same as are_reads(), but the page is used by at most one kernel of the step, which touches each
  // byte once and may write.
  bool are_once_each(const Page& page) const;

 private:
  UseNumber latest(UseNumber number, const Page& page) const;
  // Returns whether all blocks of the page are older than a step, and ask(use, previous use)
  // returns true for all uses of the page in the last step.
  template <class Ask>
  bool all_uses(const Page& page, Ask ask) const;

  const UseLog& log_;
  const StepLearner& learner_;
};

}  // namespace uvm::live
