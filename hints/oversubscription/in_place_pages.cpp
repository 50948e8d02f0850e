#include "hints/oversubscription/in_place_pages.hpp"

#include <utility>

namespace uvm::live {

bool InPlacePages::may_begin(const Page& page, KernelNumber kernel) const {
  if (page.is_on_peer || peers_.has_room() || page.used_often == kernel) return false;
  return uses_.are_once_each(page) || uses_.are_reads(page);
}

bool InPlacePages::is_back_later(const Page& page, KernelNumber kernel, const Page* victim) const {
  return victim == nullptr || victims_.next_use(page, kernel) >= victims_.next_use(*victim, kernel);
}

void InPlacePages::begin(Page& page) {
  page.is_in_place = true;
  page.is_on_host = true;
  decided_.use_in_place(page.number, page.last_use);
}

bool InPlacePages::may_go_on(const Page& page, KernelNumber newest, const PageSet& here) {
  if (peers_.has_room() || page.used_often == newest) return false;
  const KernelNumber next = victims_.next_use(page, newest);
  if (next >= newest + learner_.step_kernels() - learner_.slack()) return true;
  if (std::exchange(judged_kernel_, newest) != newest) {
    const Page* victim = victims_.choose(here, newest);
    victims_next_use_ = victim == nullptr ? 0 : victims_.next_use(*victim, newest);
  }
  return next >= victims_next_use_;
}

void InPlacePages::end(Page& page) {
  if (std::exchange(page.is_in_place, false)) decided_.end_in_place(page.number);
}

}  // namespace uvm::live
