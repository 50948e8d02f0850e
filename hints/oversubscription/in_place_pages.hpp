// Decides which pages stay on the host while kernels use them in place. If a kernel touches each
// byte once, a copy to the device moves the same number of bytes, and another page must be evicted
// for it. So such a page is prefetched only if it is used again sooner than the page that would be
// evicted.
//
// Not thread-safe, like LivePlan. Calls no driver.
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

  // While the learner predicts: returns whether that kernel may use a page on the host. If a peer
  // device has room, pages are prefetched instead, because the pages that are evicted for them move
  // to the peer.
  bool may_begin(const Page& page, KernelNumber kernel) const;
  // Returns whether the page is used again after that kernel, and no sooner than `victim`, which
  // would be evicted for it. If `victim` is nullptr, no page can be evicted.
  bool is_back_later(const Page& page, KernelNumber kernel, const Page* victim) const;
  void begin(Page& page);
  // Returns whether a page on the host may stay there for the newest kernel. `here` are the pages
  // on the device. The last use of this kernel's pages is already this kernel.
  bool may_go_on(const Page& page, KernelNumber newest, const PageSet& here);
  void end(Page& page);

 private:
  const StepLearner& learner_;
  const PageUses& uses_;
  VictimFinder& victims_;
  const PeerPages& peers_;
  MoveList& decided_;
  KernelNumber judged_kernel_ = 0;     // the kernel for which victims_next_use_ is valid
  KernelNumber victims_next_use_ = 0;  // next use of the page that would be evicted
};

}  // namespace uvm::live
