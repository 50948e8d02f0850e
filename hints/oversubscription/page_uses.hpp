// What the learned step does with a page. Pages that it only reads may keep their bytes on the host
// while they are on the device, and then leave it without a copy. Pages of which a kernel touches
// each byte once may stay on the host for that kernel.
//
// Not thread-safe, and knows no driver, as UseLog.
#pragma once

#include "hints/oversubscription/page_set.hpp"
#include "hints/oversubscription/step_learner.hpp"
#include "hints/oversubscription/use_log.hpp"

namespace uvm::live {

class PageUses {
 public:
  PageUses(const UseLog& log, const StepLearner& learner) : log_(log), learner_(learner) {}

  // While the learner predicts: all blocks of the page are older than a step, and no kernel of the
  // last step has written to the page. A block is written when it is allocated, of which the log
  // tells nothing.
  bool are_reads(const Page& page) const;
  // The same, but the page is used by one kernel of the step at most, which touches each byte once.
  // It may write.
  bool are_once_each(const Page& page) const;

 private:
  UseNumber latest(UseNumber number, const Page& page) const;
  // Whether all blocks of the page are older than a step, and the uses of the page in the last one
  // are as asked: ask(use, the one before it).
  template <class Ask>
  bool all_uses(const Page& page, Ask ask) const;

  const UseLog& log_;
  const StepLearner& learner_;
};

}  // namespace uvm::live
