#include "hints/oversubscription/live_plan.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "hints/oversubscription/policy.hpp"

namespace uvm::live {
LivePlan::LivePlan(const UseLog& log, const StepLearner& learner, const LivePolicy& policy,
                   MoveList& decided, std::size_t chunks)
    : log_(log),
      learner_(learner),
      policy_(policy),
      decided_(decided),
      chunks_(chunks),
      victims_(log, learner, policy),
      uses_(log, learner),
      in_place_(learner, uses_, victims_, peers_, decided),
      lru_(log, chunks) {}

void LivePlan::set_chunks(std::size_t chunks) {
  chunks_ = chunks;
  lru_.set_chunks(chunks);
  is_synchronized_ = false;
}

// Evicts pages until at most this many are on the device.
void LivePlan::evict_until(std::size_t pages) {
  while (here_.size() > pages) {
    Page* victim = victims_.choose(here_.set(), now_);
    if (victim == nullptr || !evict(*victim)) return;
  }
}

LivePlan::Comparison LivePlan::compare(PageNumber first, const std::vector<bool>& are_here) {
  Comparison comparison;
  for (std::size_t i = 0; i < are_here.size(); ++i) {
    const auto known = pages_.find(first + i);
    if (known == pages_.end()) {
      comparison.unknown.push_back(first + i);
      continue;
    }
    const Page& page = known->second;
    if (log_.blocks_in_page(page.number).empty()) continue;
    ++figures_.checked_pages;
    const bool is_expected = here_.contains(page);
    if (is_expected) ++comparison.expected;
    if (are_here[i]) ++comparison.found;
    if (is_expected == are_here[i] || page.is_arriving || page.is_in_place || page.is_on_peer ||
        page.keeps_copy)
      continue;
    comparison.differences.push_back(
        {page.number, are_here[i] ? page.last_use : page.arrived_for, are_here[i]});
  }
  return comparison;
}

void LivePlan::correct(const std::vector<Difference>& differences) {
  for (const Difference& difference : differences) {
    Page& page = page_at(difference.page);
    ++figures_.wrong_pages;
    if (!difference.is_here) spare_.note_lost_pages();
    page.is_uncertain = false;
    page.is_on_host = !difference.is_here;
    if (difference.is_here) {
      here_.add(page);
      page.arrived_for = difference.settled_after;
    } else {
      here_.remove(page);
    }
    is_synchronized_ = false;
  }
}

Place LivePlan::place_of(PageNumber page, Place device) const {
  const auto found = pages_.find(page);
  if (found == pages_.end() || found->second.is_uncertain) return Place::nowhere();
  if (here_.contains(found->second)) return device;
  if (found->second.is_on_peer) return Place::device(found->second.peer);
  const bool is_on_host = found->second.is_on_host || found->second.is_in_place;
  return is_on_host ? Place::host() : Place::nowhere();
}

Page& LivePlan::page_at(PageNumber number) {
  Page& page = pages_[number];
  page.number = number;
  return page;
}

void LivePlan::before_kernel(Launch launch) {
  now_ = log_.newest();
  ++figures_.kernels;
  forget_contents();
  const LoggedKernel& kernel = log_.kernel(now_);
  if (log_.use(kernel.first_use).twin == kNoUse) is_synchronized_ = false;
  for (std::uint32_t i = 0; i < kernel.use_count; ++i) note_use(log_.use(kernel.first_use + i));
  for (const PageNumber number : log_.pages_of_small_blocks())
    note_small_use(page_at(number), now_);
  find_used_pages();
  judge();
  if (used_.size() > chunks_) {
    is_synchronized_ = false;
    leave_in_place(now_, &used_);
  }
  if (used_.size() > chunks_) {
    use_too_many(launch == Launch::kGraph || newest_parts_fit());
    return;
  }
  send_due_moves();
  decided_.end_group();
  for (Page* page : used_) use(*page);
  evict_until(chunks_);
  decided_.end_group();
  if (learner_.predicts()) {
    look_ahead();
  } else {
    is_synchronized_ = false;
  }
}

void LivePlan::note_use(const LoggedUse& use) {
  log_.each_page(use, [&](PageNumber number) {
    Page& page = page_at(number);
    page.last_use = now_;
    page.history.used(now_, use.record, learner_.step_kernels());
    if ((use.access & kOnce) == 0) page.used_often = now_;
    if ((use.access & kWrites) != 0) end_copy(page);
  });
}

// It is not known how the kernel uses the small blocks.
void LivePlan::note_small_use(Page& page, KernelNumber kernel) {
  page.last_use = kernel;
  page.small_use = kernel;
  page.used_often = now_;
  end_copy(page);
  in_place_.end(page);
}

// Collects each page of the newest kernel once, except pages that stay on the host. Pages that the
// kernel reads come first, because only these pages need a copy.
void LivePlan::find_used_pages() {
  used_.clear();
  const auto add = [this](Page& page) {
    const bool stays =
        page.is_in_place && learner_.predicts() && in_place_.may_go_on(page, now_, here_.set());
    lru_.use(page, now_);
    if (stays) ++uses_in_place_;
    if (!stays) in_place_.end(page);
    // The last use of a new block's pages is already this kernel.
    if (!stays && std::exchange(page.counted, now_) != now_) used_.push_back(&page);
  };
  const LoggedKernel& kernel = log_.kernel(now_);
  for (const bool reads : {true, false}) {
    for (std::uint32_t i = 0; i < kernel.use_count; ++i) {
      const LoggedUse& use = log_.use(kernel.first_use + i);
      if (((use.access & kReads) != 0) != reads) continue;
      log_.each_page(use, [&](PageNumber number) { add(page_at(number)); });
    }
  }
  for (const PageNumber number : log_.pages_of_small_blocks()) add(page_at(number));
}

void LivePlan::judge() {
  lru_.end_kernel(now_);
  if (spare_.kernel_added(learner_.step_kernels(), moved_by_lru(), copied_away_pages_, chunks_))
    is_synchronized_ = false;
  if (!policy_.is_judged()) return;
  judge_.kernel_added(learner_.step_kernels(), moved_pages(), moved_by_lru(), chunks_);
  const LivePolicy& best = judge_.trusts_plan() ? policy_ : lru_policy_;
  if (&best == &victims_.policy()) return;
  victims_.follow(best);
  is_synchronized_ = false;
}

// If a kernel needs more pages than fit on the device, leaves the pages on the host that may be
// used there. If a page is already going to arrive before `kernel`, this is decided again when the
// kernel uses the page.
void LivePlan::leave_in_place(KernelNumber kernel, std::vector<Page*>* pages) {
  const bool is_for_newest = kernel == now_ && newest_parts_fit();
  std::erase_if(*pages, [&](Page* page) {
    if (here_.contains(*page)) return false;
    const bool may_stay = is_for_newest ? may_stay_for_newest(*page)
                                        : learner_.predicts() && in_place_.may_begin(*page, kernel);
    if (!may_stay) return false;
    const bool comes_before = kernel != now_ && is_to_come(*page);
    if (!page->is_in_place && !comes_before) use_in_place(*page);
    if (kernel == now_) ++uses_in_place_;
    return true;
  });
}

// A page that the newest kernel touches once would be prefetched and then evicted for other pages
// of the same kernel. So it may stay on the host, whatever other kernels do with it. If a kernel
// uses a part of a block that is larger than the device, it often touches little of the part, so
// the driver handles such parts.
bool LivePlan::may_stay_for_newest(const Page& page) const {
  return page.is_on_host && page.used_often != now_ && !peers_.has_room();
}

bool LivePlan::newest_parts_fit() const {
  const LoggedKernel& kernel = log_.kernel(now_);
  for (std::uint32_t i = 0; i < kernel.use_count; ++i) {
    std::size_t pages = 0;
    log_.each_page(log_.use(kernel.first_use + i), [&](PageNumber) { ++pages; });
    if (pages > chunks_) return false;
  }
  return true;
}

// Prefetches the pages that the kernel, or the graph, reads, and then other pages while there is
// room. The driver migrates the rest. If a part is larger than the device, a kernel often touches
// little of it, and the driver migrates only what is touched.
void LivePlan::use_too_many(bool brings_some) {
  const std::size_t brought = brings_some ? chunks_ : 0;
  left_to_driver(used_.size() - brought);
  for (std::size_t i = brought; i < used_.size(); ++i) used_[i]->last_use = now_ - 1;
  for (std::size_t i = 0; i < brought; ++i) use(*used_[i]);
  std::erase_if(used_, [](const Page* page) { return page->is_in_place; });
  for (Page* page : used_) {
    page->last_use = now_;
    page->arrived_for = now_;
    // Also wait for pages that the driver may have evicted after their prefetch.
    wait_for(*page);
    peers_.came_back(*page);
  }
  here_.add_by_driver(used_, chunks_);
}

void LivePlan::before_unlogged_kernel() {
  now_ = log_.newest();
  for (const PageNumber number : log_.pages_of_small_blocks()) {
    Page& page = page_at(number);
    note_small_use(page, now_ + 1);
    use(page);
  }
}

void LivePlan::block_allocated(RecordId id) {
  now_ = log_.newest();
  const BlockExtent& extent = log_.record(id).extent;
  bool was_in_place = false;
  UseLog::each_page(extent, [&](PageNumber number) {
    Page& page = page_at(number);
    page.last_use = now_ + 1;
    was_in_place |= page.is_in_place;
    end_copy(page);
    in_place_.end(page);
  });
  if (extent.size_bytes > chunks_ * kPageBytes / policy::kLargeBlockParts) return;
  forget_contents();
  send_due_moves();
  // No kernel has written to the block yet, so its bytes need no copy. But if the pages were used
  // in place, launched kernels may still read the old bytes at this address on the host. In that
  // case keep the bytes.
  UseLog::each_page(extent, [&](PageNumber number) {
    const bool is_own = address_of(number) >= extent.address &&
                        address_of(number + 1) <= extent.address + extent.size_bytes;
    use(page_at(number), is_own && !was_in_place ? Contents::kDropped : Contents::kKept);
    lru_.bring_new(page_at(number), now_ + 1);
  });
}

void LivePlan::block_freed(const BlockExtent& extent) {
  UseLog::each_page(extent, [&](PageNumber number) {
    const auto found = pages_.find(number);
    if (found == pages_.end()) return;
    Page& page = found->second;
    page.freed = log_.newest();
    if (page.is_on_host) freed_.push_back(&page);
    if (!log_.blocks_in_page(number).empty()) return;
    page.history.emptied(log_.newest(), learner_.step_kernels());
    lru_.emptied(page);
  });
}

// A page without contents is not copied when it moves back to the device.
void LivePlan::forget_contents() {
  for (Page* page : freed_) {
    if (!page->is_on_host || page->is_in_place || !log_.blocks_in_page(page->number).empty())
      continue;
    if (discard(*page) == Discarded::kYes) page->is_on_host = false;
  }
  freed_.clear();
}

void LivePlan::leave(PageNumber number) {
  const auto found = pages_.find(number);
  if (found == pages_.end() || !here_.contains(found->second)) return;
  is_synchronized_ = false;
  send_away(found->second);
}

bool LivePlan::bring(PageNumber number) {
  now_ = log_.newest();
  Page& page = page_at(number);
  if (here_.contains(page)) return false;
  is_synchronized_ = false;
  page.last_use = now_ + 1;
  if (here_.size() >= chunks_ || !bring_now(page, now_ + 1)) return false;
  wait_for(page);
  return true;
}

std::size_t LivePlan::make_free_room() {
  const std::vector<Page*> pages(here_.set().begin(), here_.set().end());
  for (Page* page : pages) {
    if (log_.blocks_in_page(page->number).empty()) (void)evict(*page);
  }
  return free_chunks();
}

void LivePlan::leave_device() {
  moves_.clear();
  is_synchronized_ = false;
  const std::vector<Page*> leaving(here_.set().begin(), here_.set().end());
  for (Page* page : leaving) {
    if (!evict(*page)) send_away(*page);
  }
}

void LivePlan::set_peer_room(int device, std::size_t pages) {
  for (Page* page : peers_.set_room(device, pages)) {
    decided_.leave_peer(page->number);
    page->is_on_host = true;
  }
}

void LivePlan::use(Page& page, Contents contents) {
  if (!here_.contains(page)) {
    Page* victim = nullptr;
    if (here_.size() >= chunks_ && learner_.predicts() && in_place_.may_begin(page, now_)) {
      victim = victims_.choose(here_.set(), now_);
      if (in_place_.is_back_later(page, now_, victim)) {
        if (planned_.contains(page)) is_synchronized_ = false;
        use_in_place(page);
        ++uses_in_place_;
        return;
      }
    }
    is_synchronized_ = false;
    if (!bring_now(page, now_, contents, victim)) leave_to_driver(page);
  } else if (page.is_uncertain) {
    bring_again(page);
  }
  if (!page.is_arriving) return;
  wait_for(page);
}

void LivePlan::wait_for(Page& page) {
  decided_.wait_for(page.number);
  here_.set_arriving(page, false);
}

// Prefetches a page that may have been evicted. If it is on the device, the prefetch has no effect.
void LivePlan::bring_again(Page& page) {
  page.is_uncertain = false;
  page.arrived_for = now_;
  here_.set_arriving(page, true);
  decided_.hold_arrivals();
  decided_.bring(page.number, Arrival::kCopied, now_);
}

// Leaves the page to the driver: the page migrates when it is used, and the driver makes room by
// its own rule.
void LivePlan::leave_to_driver(Page& page) {
  left_to_driver(1);
  peers_.came_back(page);
  page.arrived_for = now_;
  here_.add_by_driver(std::array{&page}, chunks_);
}

// Counts pages that the driver migrates: it copies each page to the device, and evicts another page
// by a copy.
void LivePlan::left_to_driver(std::size_t pages) {
  figures_.missing_pages += pages;
  returned_pages_ += pages;
  copied_away_pages_ += pages;
}

bool LivePlan::bring_now(Page& page, KernelNumber need, Contents contents, Page* first_victim) {
  in_place_.end(page);
  while (here_.size() >= chunks_) {
    Page* victim = std::exchange(first_victim, nullptr);
    if (victim == nullptr) victim = victims_.choose(here_.set(), now_);
    if (victim == nullptr) return false;
    (void)evict(*victim);
  }
  const bool was_on_host = page.is_on_host;
  const bool was_away = was_on_host || page.is_on_peer;
  if (was_on_host && !page.keeps_copy && learner_.predicts() && !peers_.has_room() &&
      uses_.are_reads(page)) {
    page.keeps_copy = true;
    decided_.keep_copy(page.number);
  }
  peers_.came_back(page);
  here_.add(page);
  here_.set_arriving(page, true);
  page.arrived_for = need;
  const Arrival arrival = !was_away                        ? Arrival::kNew
                          : contents == Contents::kDropped ? Arrival::kDropped
                                                           : Arrival::kCopied;
  decided_.bring(page.number, arrival, need, spare_.is_shared() ? 0 : free_chunks());
  ++figures_.brought_pages;
  if (arrival == Arrival::kCopied) ++returned_pages_;
  return true;
}

void LivePlan::use_in_place(Page& page) {
  end_copy(page);
  ++figures_.in_place_pages;
  in_place_.begin(page);
}

void LivePlan::end_copy(Page& page) {
  if (std::exchange(page.keeps_copy, false)) decided_.end_copy(page.number);
}

// Graphs may use freed memory, so their pages are not discarded.
Discarded LivePlan::discard(const Page& page) {
  return decided_.discard(page.number, page.freed == 0 ? 0 : std::max(page.freed, page.last_use));
}

bool LivePlan::evict(Page& page) {
  if (page.keeps_copy || !log_.blocks_in_page(page.number).empty()) {
    send_away(page);
    return true;
  }
  const Discarded discarded = discard(page);
  if (discarded == Discarded::kInUse) {
    page.last_use = now_;
    return false;
  }
  if (discarded == Discarded::kRefused) {
    send_away(page);
    return true;
  }
  here_.remove(page);
  ++figures_.discarded_pages;
  return true;
}

// Evicts the page with its contents.
void LivePlan::send_away(Page& page) {
  here_.remove(page);
  ++figures_.evicted_pages;
  if (page.keeps_copy) {
    decided_.drop(page.number, page.last_use);
    page.is_on_host = true;
    return;
  }
  ++copied_away_pages_;
  const int peer = peers_.send(page);
  if (peer == Page::kNoPeer) {
    decided_.leave(page.number, Place::host(), page.last_use);
    page.is_on_host = true;
  } else {
    decided_.leave(page.number, Place::device(peer), page.last_use);
    ++figures_.pages_to_peers;
  }
}

// ---- coming kernels

void LivePlan::look_ahead() {
  // After a kernel that was left out, all later ones come earlier than planned.
  if (!is_synchronized_ || planned_step_ != learner_.step_kernels()) {
    evict_until(planned_chunks());
    synchronize();
  }
  // Plan at most one step ahead, because later kernels repeat the step.
  const std::uint64_t ahead =
      std::min<std::uint64_t>(victims_.policy().kernels_ahead(), learner_.step_kernels());
  while (planned_until_ < now_ + ahead) plan_kernel(++planned_until_);
  send_due_moves();
}

void LivePlan::synchronize() {
  moves_.clear();
  planned_.clear();
  for (Page* page : here_.set()) {
    planned_.add(*page);
    page->planned_last_use = page->last_use;
  }
  planned_until_ = now_;
  planned_step_ = learner_.step_kernels();
  is_synchronized_ = true;
}

void LivePlan::plan_kernel(KernelNumber kernel) {
  wanted_.clear();
  learner_.each_coming_page(kernel, [&](PageNumber number, std::uint8_t access, bool is_new) {
    Page& page = page_at(number);
    if ((access & kOnce) == 0) page.used_often = kernel;
    if (std::exchange(page.planned_last_use, kernel) != kernel) {
      wanted_.push_back(&page);
      page.is_coming_new = true;
    }
    page.is_coming_new &= is_new;
  });
  if (wanted_.size() > chunks_) leave_in_place(kernel, &wanted_);
  if (wanted_.size() > chunks_) return;
  for (Page* page : wanted_) {
    if (planned_.contains(*page)) continue;
    Move move{.page = page, .need = kernel, .is_new = page->is_coming_new};
    if (planned_.size() >= planned_chunks()) {
      const bool may_stay = in_place_.may_begin(*page, kernel);
      if (may_stay && page->is_in_place) continue;
      move.victim = victims_.choose(planned_, kernel);
      if (may_stay && in_place_.is_back_later(*page, kernel, move.victim)) {
        // If the page is on the device or will arrive, and will be evicted before this use, this is
        // decided again at its use.
        if (!here_.contains(*page) && !is_to_come(*page)) use_in_place(*page);
        continue;
      }
      if (move.victim == nullptr) continue;
      move.after = move.victim->planned_last_use;
      move.waits_for_free = !victims_.will_hold_blocks(*move.victim, kernel);
      planned_.remove(*move.victim);
    }
    planned_.add(*page);
    moves_.push_back(move);
  }
}

bool LivePlan::is_to_come(const Page& page) const {
  return std::ranges::find(moves_, &page, &Move::page) != moves_.end();
}

// Sends planned moves in their order, except moves that wait for a last use. A page can move back
// only after it was evicted.
void LivePlan::send_due_moves() {
  if (!is_synchronized_) return;
  held_back_.clear();
  due_.clear();
  still_.clear();
  const std::size_t credits = std::max(policy::kLeastCredits, chunks_ / policy::kChunksPerCredit);
  for (const Move& move : moves_) {
    // The page has to be evicted first, or the current kernel uses it on the host.
    const bool is_held_back = std::ranges::find(held_back_, move.page) != held_back_.end() ||
                              (move.page->is_in_place && move.page->last_use == now_);
    const bool is_needed = move.need <= now_ || move.page->last_use > now_;
    const bool has_credit = is_needed || here_.arriving() + due_.size() < credits;
    // Bytes of blocks that are freed before are not copied.
    const bool is_free =
        (!move.waits_for_free || log_.blocks_in_page(move.victim->number).empty()) &&
        (!move.is_new || !move.page->is_on_host || log_.blocks_in_page(move.page->number).empty());
    if (is_held_back || move.after >= now_ || !has_credit || (!is_free && move.need > now_)) {
      if (move.victim != nullptr) held_back_.push_back(move.victim);
      still_.push_back(move);
      continue;
    }
    due_.push_back(move);
  }
  // One round uses half of the credits, so that its pages arrive while the moves of the next round
  // are decided.
  const std::size_t round = std::min(round_moves_, credits / 2);
  const auto is_soon = [this](const Move& move) {
    return move.need <= now_ + policy::kSoonKernels || move.page->last_use > now_;
  };
  if (due_.size() < round && std::ranges::none_of(due_, is_soon)) return;
  moves_.swap(still_);
  // Evict pages with a copy on the host first, so that adjacent pages are evicted together. Evict
  // other pages one by one, because an arriving page waits for all evictions sent before it.
  bool needed_now = false;
  is_synchronized_ =
      std::ranges::all_of(due_,
                          [&](const Move& each) {
                            return each.victim == nullptr || !each.victim->keeps_copy ||
                                   make_room(each);
                          }) &&
      std::ranges::all_of(due_, [&](const Move& each) {
        if (each.need > now_ && std::exchange(needed_now, false)) decided_.end_group();
        needed_now |= each.need <= now_;
        return make_room(each) && (here_.contains(*each.page) || bring_now(*each.page, each.need));
      });
}

// Evicts the victim. Returns false if the program has used the victim again, which the plan did not
// expect.
bool LivePlan::make_room(const Move& move) {
  if (move.victim == nullptr || !here_.contains(*move.victim)) return true;
  if (move.victim->last_use > move.after) return false;
  return evict(*move.victim);
}

}  // namespace uvm::live
