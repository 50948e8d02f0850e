// Decides which pages of 2 MiB come to one device and which leave it, while a program uses more of
// them than the device holds. Before each kernel it makes sure of the kernel's pages. Once the
// learner knows the step, it goes through the coming kernels: a page that is not there then takes
// the chunk of the page that is needed last. The move is sent as soon as the last use of the
// leaving page is on its stream.
//
// A page comes only if a chunk is free for it or made free before, so pages on their way are
// bounded by the chunks. Where pages really are is not known: faults move them too. The plan
// believes that a page is on the device from its last use or arrival until it leaves.
//
// Not thread-safe: LivePlanner's plan lock guards it. Knows no driver.
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

  // The newest kernel of the log is about to be put on a stream. The pages of a graph come before
  // it, whether or not its step is known.
  void before_kernel(Launch launch = Launch::kKernel);
  // A kernel is about to be put on a stream that the log has not taken: it uses small blocks alone.
  void before_unlogged_kernel();
  // A block was allocated whose first use comes soon.
  void block_allocated(RecordId id);
  // A block was freed that lay there. All frees are told, those of blocks that are too small for
  // the log too.
  void block_freed(const BlockExtent& extent);
  // The page leaves, if it is there.
  void leave(PageNumber page);
  // The page comes for the next kernel. False: it is there, or there is no room.
  bool bring(PageNumber page);
  // Pages of free memory leave. Returns how many pages may come.
  std::size_t make_free_room();
  // All pages leave: the device is another program's for a while.
  void leave_device();
  // So many pages may be on another device, whose link is faster than the host's, when they leave.
  void set_peer_room(int device, std::size_t pages);
  // As in PeerPages.
  std::size_t pages_of_peer(int device) const { return peers_.pages_of(device); }
  void end_peer_period() { peers_.end_period(); }
  // Chunks that pages may have of the device. If there are more pages, the surplus leaves before
  // the next kernel.
  void set_chunks(std::size_t chunks);
  // Compares the plan with the driver's answer: whether the page `first` + i is on the device.
  // Leaves out pages on their way, and pages with two places.
  struct Difference {
    PageNumber page{};
    KernelNumber last_use = 0;
    bool is_here = false;
  };
  struct Comparison {
    std::vector<Difference> differences;  // of pages that were not where the plan expected them
    std::size_t expected = 0;             // pages with blocks that the plan expected on the device
    std::size_t found = 0;                // pages with blocks that are on the device
  };
  Comparison compare(PageNumber first, const std::vector<bool>& are_here);
  // Corrects the plan. `differences`: of pages that streams have finished using and moving.
  void correct(const std::vector<Difference>& differences);
  // Returns the place where the plan has the page, nowhere() if it does not know.
  Place place_of(PageNumber page, Place device) const;
  std::size_t chunks() const { return chunks_; }
  // So many moves are sent together, if that makes no kernel wait longer; 1 at first.
  void set_round(std::size_t moves) { round_moves_ = moves; }

  void step_took(const ThrashDetector::Step& step) { judge_.step_took(step); }
  std::size_t pages_here() const { return here_.size(); }
  const LiveFigures& figures() const { return figures_; }
  // Copies of pages that came back, and of pages that had to leave for them. A total; the first
  // arrival of a page is none.
  std::uint64_t copied_pages() const {
    return returned_pages_ + std::min(returned_pages_, copied_away_pages_);
  }

  // Totals of pages that are copied either way, or used on the host by one kernel: of this plan,
  // and of `lru` for the same kernels.
  std::uint64_t moved_pages() const {
    return returned_pages_ + copied_away_pages_ + uses_in_place_;
  }
  std::uint64_t moved_by_lru() const { return lru_.moved_pages(); }

 private:
  enum class Contents : std::uint8_t { kKept, kDropped };

  // A page that comes to the device for a coming kernel.
  struct Move {
    Page* page = nullptr;
    Page* victim = nullptr;  // null: a chunk is free
    KernelNumber after = 0;  // the victim's last use before
    KernelNumber need = 0;
    bool waits_for_free = false;  // the victim's blocks are expected to be freed before
  };

  Page& page_at(PageNumber number);
  void use(Page& page, Contents contents = Contents::kKept);
  void note_use(const LoggedUse& use);
  void note_small_use(Page& page, KernelNumber kernel);
  void find_used_pages();
  void judge();
  void leave_in_place(KernelNumber kernel, std::vector<Page*>* pages);
  bool may_stay_for_newest(const Page& page) const;
  // Whether the newest kernel uses no more of any block than the device holds.
  bool newest_parts_fit() const;
  void use_too_many(bool brings_some);
  void wait_for(Page& page);
  void bring_again(Page& page);
  void leave_to_driver(Page& page);
  void left_to_driver(std::size_t pages);
  void forget_contents();
  // Brings the page now. False: no page can leave for it. `first_victim`: leaves first; nullptr: it
  // is chosen.
  bool bring_now(Page& page, KernelNumber need, Contents contents = Contents::kKept,
                 Page* first_victim = nullptr);
  // False: the page holds blocks that are too small for the log, and stays.
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
  // Before kernel planned_until_ + 1.
  PageSet planned_{&Page::planned_place, &Page::planned_last_use};
  KernelNumber planned_until_ = 0;
  bool is_synchronized_ = false;  // the planned pages follow from those that are here
  std::vector<Move> moves_;       // that are not sent yet
  std::vector<Page*> freed_;      // on the host, since the last kernel
  std::vector<Page*> used_;       // by the newest kernel
  std::vector<Page*> wanted_;
  std::vector<Page*> held_back_;
  std::vector<Move> due_;
  std::vector<Move> still_;  // not due
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
  std::uint64_t uses_in_place_ = 0;  // by a kernel, of a page
};

}  // namespace uvm::live
