#include "hints/oversubscription/victim_finder.hpp"

#include <algorithm>

#include "hints/oversubscription/policy.hpp"

namespace uvm::live {

Page* VictimFinder::choose(const PageSet& pages, KernelNumber kernel) {
  candidates_.clear();
  candidate_pages_.clear();
  const std::size_t count = pages.size();
  for (std::size_t i = 0; i < count && candidates_.size() < policy::kMostCandidates; ++i) {
    Page& page = pages[(turn_ + i) % count];
    plan::Candidate candidate{.last_use = pages.last_use(page), .kernel = kernel};
    if (candidate.last_use >= kernel || has_small_blocks(page, kernel)) continue;
    if (learner_.predicts()) {
      candidate.next_use = next_use(page, kernel, &candidate.live_bytes);
      const bool will_hold = will_hold_blocks(page, kernel);
      if (!will_hold) candidate.live_bytes = 0;
      if (will_hold && candidate.live_bytes == 0) candidate.live_bytes = kPageBytes;
    } else {
      candidate.live_bytes = log_.blocks_in_page(page.number).empty() ? 0 : kPageBytes;
    }
    candidates_.push_back(candidate);
    candidate_pages_.push_back(&page);
  }
  take_turn(count);
  if (candidates_.empty()) return nullptr;
  return candidate_pages_[policy_->choice().choose(candidates_)];
}

// Returns the earliest next use after that kernel of the page's blocks, and of blocks that are
// expected in the page because the page contained blocks one step before.
KernelNumber VictimFinder::next_use(const Page& page, KernelNumber after,
                                    std::uint64_t* live_bytes) const {
  KernelNumber earliest = plan::kNever;
  *live_bytes = 0;
  for (const RecordId id : log_.blocks_in_page(page.number)) {
    *live_bytes += std::min(log_.record(id).extent.size_bytes, kPageBytes);
    if (const auto next = learner_.next_use(id, page.number, after))
      earliest = std::min(earliest, *next);
  }
  const auto by_others = page.history.next_use_by_others(
      after, learner_.step_kernels(), [this](RecordId id) { return log_.record(id).is_live; });
  return std::min(earliest, by_others.value_or(plan::kNever));
}

bool VictimFinder::will_hold_blocks(const Page& page, KernelNumber kernel) const {
  const bool holds_now = !log_.blocks_in_page(page.number).empty();
  const std::uint64_t step = learner_.step_kernels();
  if (step == 0 || kernel <= log_.newest()) return holds_now;
  return page.history.holds_blocks_before(kernel, log_.newest(), step).value_or(holds_now);
}

// Returns whether a kernel of the last step used small blocks in the page. The log does not record
// small blocks, so such a page is not evicted for a step after their last use.
bool VictimFinder::has_small_blocks(const Page& page, KernelNumber kernel) const {
  const std::uint64_t step = learner_.step_kernels();
  return page.small_use != 0 && kernel < page.small_use + (step != 0 ? step : policy::kUnknownStep);
}

void VictimFinder::take_turn(std::size_t pages) {
  turn_ = pages > policy::kMostCandidates ? (turn_ + policy::kMostCandidates) % pages : 0;
}

}  // namespace uvm::live
