// Decides which 2 MiB pages move to one device and which are evicted, while a program uses more
// pages than the device holds. Before each kernel, the plan ensures that the kernel's pages are on
// the device. When the learner knows the step, the plan looks at the coming kernels: a missing page
// takes the chunk of the page that is needed last. The move is sent as soon as the last use of the
// evicted page is on its stream.
//
// A page is prefetched only if a chunk is free or is made free before, so the number of chunks
// bounds the pages in flight. The plan does not know where pages really are, because faults move
// pages too. It assumes that a page is on the device from the page's last use or arrival until its
// eviction.
//
// Not thread-safe: LivePlanner's plan lock guards it. Calls no driver.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include <uvmalloc/place.hpp>
#include "hints/oversubscription/device_pages.hpp"
#include "hints/oversubscription/in_place_pages.hpp"
#include "hints/oversubscription/live_policy.hpp"
#include "hints/oversubscription/move_list.hpp"
#include "hints/oversubscription/page_set.hpp"
#include "hints/oversubscription/page_uses.hpp"
#include "hints/oversubscription/peer_pages.hpp"
#include "hints/oversubscription/plan_judge.hpp"
#include "hints/oversubscription/shadow_lru.hpp"
#include "hints/oversubscription/spare_chunks.hpp"
#include "hints/oversubscription/step_learner.hpp"
#include "hints/oversubscription/use_log.hpp"
#include "hints/oversubscription/victim_finder.hpp"

namespace uvm::live {

class LivePlan {
 public:
  LivePlan(const UseLog& log, const StepLearner& learner, const LivePolicy& policy,
           MoveList& decided, std::size_t chunks);

  // Call this before the newest kernel of the log is put on a stream. The pages of a graph are
  // prefetched before the graph even if its step is not known.
  void before_kernel(Launch launch = Launch::kKernel);
  // Call this before a kernel is put on a stream that the log does not record because the kernel
  // uses only small blocks.
  void before_unlogged_kernel();
  // Call this after a block was allocated. Its first use is expected soon.
  void block_allocated(RecordId id);
  // Call this after a block at `extent` was freed, even if the block was too small for the log.
  void block_freed(const BlockExtent& extent);
  // Evicts the page if it is on the device.
  void leave(PageNumber page);
  // Prefetches the page for the next kernel. Returns false if the page is already on the device, or
  // if there is no room.
  bool bring(PageNumber page);
  // Evicts pages of free memory. Returns how many pages may then be prefetched.
  std::size_t make_free_room();
  // Evicts all pages, because another program uses the device for a while.
  void leave_device();
  // Sets how many evicted pages may be on another device, whose link is faster than the host's.
  void set_peer_room(int device, std::size_t pages);
  // Same as PeerPages::pages_of().
  std::size_t pages_of_peer(int device) const { return peers_.pages_of(device); }
  void end_peer_period() { peers_.end_period(); }
  // Sets how many chunks of the device pages may use. Surplus pages are evicted before the next
  // kernel.
  void set_chunks(std::size_t chunks);
  // Compares the plan with the places that the driver reports: element i says whether the page
  // `first` + i is on the device. Skips pages in flight, and pages with two places.
  struct Difference {
    PageNumber page{};
    // When this kernel has been executed, and the page's last eviction, the place is final: the
    // kernel for which the page came to the device, or, if it was evicted, its last use.
    KernelNumber settled_after = 0;
    bool is_here = false;
  };
  struct Comparison {
    std::vector<Difference> differences;  // pages that were not where the plan expected them
    std::size_t expected = 0;             // pages with blocks that the plan expected on the device
    std::size_t found = 0;                // pages with blocks that are on the device
    std::vector<PageNumber> unknown;      // pages that no kernel of the plan has used
  };
  Comparison compare(PageNumber first, const std::vector<bool>& are_here);
  // Corrects the plan. All uses and moves of the pages in `differences` must have finished.
  void correct(const std::vector<Difference>& differences);
  // Returns the place where the plan assumes the page; nowhere() if the plan does not know the
  // page.
  Place place_of(PageNumber page, Place device) const;
  std::size_t chunks() const { return chunks_; }
  // Sets how many moves are sent together, if that makes no kernel wait longer; 1 at first.
  void set_round(std::size_t moves) { round_moves_ = moves; }

  void step_took(const ThrashDetector::Step& step) { judge_.step_took(step); }
  std::size_t pages_here() const { return here_.size(); }
  const LiveFigures& figures() const { return figures_; }
  // Returns the total number of copies of pages that moved back to the device, and of pages that
  // were evicted for them. The first arrival of a page does not count.
  std::uint64_t copied_pages() const {
    return returned_pages_ + std::min(returned_pages_, copied_away_pages_);
  }

  // Return the total number of pages that are copied in either direction, or used on the host by
  // one kernel: by this plan, and by `lru` for the same kernels.
  std::uint64_t moved_pages() const {
    return returned_pages_ + copied_away_pages_ + uses_in_place_;
  }
  std::uint64_t moved_by_lru() const { return lru_.moved_pages(); }

 private:
  enum class Contents : std::uint8_t { kKept, kDropped };

  // A planned move of a page to the device for a coming kernel.
  struct Move {
    Page* page = nullptr;
    Page* victim = nullptr;  // null: a chunk is free
    KernelNumber after = 0;  // the victim's last use before the move
    KernelNumber need = 0;
    bool waits_for_free = false;  // the victim's blocks are expected to be freed before the move
    bool is_new = false;          // the kernel's block in the page is not allocated yet
  };

  Page& page_at(PageNumber number);
  void use(Page& page, Contents contents = Contents::kKept);
  void note_use(const LoggedUse& use);
  void note_small_use(Page& page, KernelNumber kernel);
  void find_used_pages();
  void judge();
  void leave_in_place(KernelNumber kernel, std::vector<Page*>* pages);
  bool may_stay_for_newest(const Page& page) const;
  // Returns whether each part of a block that the newest kernel uses fits on the device.
  bool newest_parts_fit() const;
  void use_too_many(bool brings_some);
  void wait_for(Page& page);
  void bring_again(Page& page);
  void leave_to_driver(Page& page);
  void left_to_driver(std::size_t pages);
  void forget_contents();
  // Prefetches the page now. Returns false if no page can be evicted for it. `first_victim` is
  // evicted first; if it is nullptr, the policy chooses a page.
  bool bring_now(Page& page, KernelNumber need, Contents contents = Contents::kKept,
                 Page* first_victim = nullptr);
  // Returns false if the page contains blocks that are too small for the log; then it is not
  // evicted.
  bool evict(Page& page);
  void evict_until(std::size_t pages);
  void send_away(Page& page);
  Discarded discard(const Page& page);
  void end_copy(Page& page);
  void use_in_place(Page& page);

  // ---- coming kernels
  void look_ahead();
  void synchronize();
  void plan_kernel(KernelNumber kernel);
  void send_due_moves();
  bool make_room(const Move& move);
  bool is_to_come(const Page& page) const;
  std::size_t planned_chunks() const { return chunks_ - spare_.count(); }
  std::size_t free_chunks() const { return chunks_ - std::min(chunks_, here_.size()); }

  const UseLog& log_;
  const StepLearner& learner_;
  const LivePolicy& policy_;
  const LruLivePolicy lru_policy_;  // followed while judge_ finds it better
  MoveList& decided_;
  std::size_t chunks_;
  std::unordered_map<PageNumber, Page> pages_;
  DevicePages here_;
  // The pages that will be on the device before kernel planned_until_ + 1.
  PageSet planned_{&Page::planned_place, &Page::planned_last_use};
  KernelNumber planned_until_ = 0;
  bool is_synchronized_ = false;    // planned_ and moves_ still follow from here_
  std::uint64_t planned_step_ = 0;  // kernels of the step for which planned_ was planned
  std::vector<Move> moves_;         // planned moves that are not sent yet
  std::vector<Page*> freed_;        // pages on the host that were freed since the last kernel
  std::vector<Page*> used_;         // pages that the newest kernel uses
  std::vector<Page*> wanted_;
  std::vector<Page*> held_back_;
  std::vector<Move> due_;
  std::vector<Move> still_;  // moves that are not due
  std::size_t round_moves_ = 1;
  VictimFinder victims_;
  PageUses uses_;
  PeerPages peers_;
  InPlacePages in_place_;
  KernelNumber now_ = 0;
  ShadowLru lru_;  // for judge_
  PlanJudge judge_;
  SpareChunks spare_;
  LiveFigures figures_;
  std::uint64_t returned_pages_ = 0;
  std::uint64_t copied_away_pages_ = 0;
  std::uint64_t uses_in_place_ = 0;  // how often a kernel used a page on the host
};

}  // namespace uvm::live
