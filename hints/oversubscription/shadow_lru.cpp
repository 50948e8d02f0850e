#include "hints/oversubscription/shadow_lru.hpp"

#include <utility>

namespace uvm::live {

using Shadow = Page::Shadow;

void ShadowLru::use(Page& page, KernelNumber kernel) {
  if (std::exchange(page.shadow.last_use, kernel) == kernel) return;
  if (page.shadow.place == Shadow::Place::kDevice)
    here_.splice(here_.end(), here_, page.shadow.position);
  used_.push_back(&page);
}

// Does what LivePlan does without a known step: if the kernel needs more pages than there are
// chunks, it uses pages that it touches once on the host, and the driver migrates pages without a
// free chunk.
void ShadowLru::end_kernel(KernelNumber kernel) {
  const bool has_too_many = used_.size() > chunks_;
  for (Page* page : used_) {
    if (page->shadow.place == Shadow::Place::kDevice) continue;
    if (has_too_many && page->shadow.place == Shadow::Place::kHost && page->used_often != kernel) {
      ++moved_pages_;
    } else if (make_room(kernel)) {
      bring(*page);
    } else {
      moved_pages_ += 2;
    }
  }
  used_.clear();
}

void ShadowLru::bring_new(Page& page, KernelNumber kernel) {
  if (page.shadow.place == Shadow::Place::kDevice) {
    here_.splice(here_.end(), here_, page.shadow.position);
  } else if (make_room(kernel)) {
    page.shadow.place = Shadow::Place::kNowhere;
    bring(page);
  } else {
    return;
  }
  page.shadow.last_use = kernel;
}

// A page without blocks is evicted first.
void ShadowLru::emptied(Page& page) {
  if (page.shadow.place == Shadow::Place::kHost) page.shadow.place = Shadow::Place::kNowhere;
  if (page.shadow.place == Shadow::Place::kDevice)
    here_.splice(here_.begin(), here_, page.shadow.position);
}

bool ShadowLru::make_room(KernelNumber kernel) {
  while (here_.size() >= chunks_) {
    if (here_.empty() || here_.front()->shadow.last_use >= kernel) return false;
    Page* leaving = here_.front();
    here_.pop_front();
    const bool is_dead = log_.blocks_in_page(leaving->number).empty();
    leaving->shadow.place = is_dead ? Shadow::Place::kNowhere : Shadow::Place::kHost;
    if (!is_dead) ++moved_pages_;
  }
  return true;
}

void ShadowLru::bring(Page& page) {
  if (page.shadow.place == Shadow::Place::kHost) ++moved_pages_;
  page.shadow.place = Shadow::Place::kDevice;
  page.shadow.position = here_.insert(here_.end(), &page);
}

}  // namespace uvm::live
