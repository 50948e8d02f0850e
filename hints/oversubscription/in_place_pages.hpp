// Decides which pages stay on the host while kernels use them there. Where a kernel touches each
// byte once, a copy moves no fewer bytes, and another page leaves for it. So a page comes only if
// it is used again sooner than the page that would leave.
//
// Not thread-safe, as LivePlan. Knows no driver.
#pragma once

#include "hints/oversubscription/move_list.hpp"
#include "hints/oversubscription/page_set.hpp"
#include "hints/oversubscription/page_uses.hpp"
#include "hints/oversubscription/peer_pages.hpp"
#include "hints/oversubscription/step_learner.hpp"
#include "hints/oversubscription/victim_finder.hpp"

namespace uvm::live {

class InPlacePages {
 public:
  InPlacePages(const StepLearner& learner, const PageUses& uses, VictimFinder& victims,
               const PeerPages& peers, MoveList& decided)
      : learner_(learner), uses_(uses), victims_(victims), peers_(peers), decided_(decided) {}

  // While the learner predicts: whether that kernel may use a page on the host. Where another
  // device has room, pages come, because those that leave for them go there.
  bool may_begin(const Page& page, KernelNumber kernel) const;
  // Whether the page is used again after that kernel, and no sooner than `victim`, which would
  // leave for it; nullptr: no page can leave.
  bool is_back_later(const Page& page, KernelNumber kernel, const Page* victim) const;
  void begin(Page& page);
  // Whether a page on the host may stay there for the newest kernel. `here`: the pages on the
  // device. Those of this kernel have it as their last use.
  bool may_go_on(const Page& page, KernelNumber newest, const PageSet& here);
  void end(Page& page);

 private:
  const StepLearner& learner_;
  const PageUses& uses_;
  VictimFinder& victims_;
  const PeerPages& peers_;
  MoveList& decided_;
  KernelNumber judged_kernel_ = 0;     // for which the next member holds
  KernelNumber victims_next_use_ = 0;  // of the page that would leave
};

}  // namespace uvm::live
