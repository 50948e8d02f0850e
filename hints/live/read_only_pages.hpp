// Finds pages that the learned step only reads. They may keep their bytes on the host while they
// are on the device, and then leave it without a copy. Those that it reads once may stay on the
// host.
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
  // The same, and each block is used by one kernel of the step at most, which reads each byte once.
  bool is_read_once(const Page& page) const;
  // Whether a use of a page that was read once still is such a use.
  bool is_read_once(const LoggedUse& use) const;

 private:
  // Whether all blocks of the page are older than a step, and their uses in the last one are as
  // asked.
  template <class Ask>
  bool all_uses(const Page& page, Ask ask) const;

  const UseLog& log_;
  const StepLearner& learner_;
};

}  // namespace uvm::live
