// Finds pages that the learned step only reads. They may keep their bytes on the host while they
// are on the device, and then leave it without a copy.
//
// Not thread-safe, and knows no driver, as UseLog.
#pragma once

#include <uvmalloc/hints/live/page_set.hpp>
#include <uvmalloc/hints/live/step_learner.hpp>
#include <uvmalloc/hints/live/use_log.hpp>

namespace uvm::live {

class ReadOnlyPages {
 public:
  ReadOnlyPages(const UseLog& log, const StepLearner& learner) : log_(log), learner_(learner) {}

  // While the learner predicts: all blocks of the page are older than a step, and no kernel of the
  // last step has written to them. A block is written when it is allocated, of which the log tells
  // nothing.
  bool contains(const Page& page) const;

 private:
  const UseLog& log_;
  const StepLearner& learner_;
};

}  // namespace uvm::live
