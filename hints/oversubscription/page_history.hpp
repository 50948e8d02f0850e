// When a page of 2 MiB was used, and when its last block was freed, during the last step or more.
// An allocator that gets the same requests in each step finds the same places, so the coming step
// is expected to use the page as the last one did.
//
// Not thread-safe, as UseLog. Knows no driver.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <vector>

#include "hints/oversubscription/policy.hpp"
#include "hints/oversubscription/use_log.hpp"

namespace uvm::live {

class PageHistory {
 public:
  // `step`: kernels of a step; 0: it is not known.
  void used(KernelNumber kernel, RecordId record, std::uint64_t step) {
    uses_.add({kernel, record}, step);
  }
  // Its last block was freed after that kernel and before the next one.
  void emptied(KernelNumber kernel, std::uint64_t step) { emptied_.add({kernel, kNoRecord}, step); }

  // The first kernel after `after` that is expected to use the page for another block than those
  // that are there now.
  template <class IsLive>
  std::optional<KernelNumber> next_use_by_others(KernelNumber after, std::uint64_t step,
                                                 IsLive is_live) const {
    const auto found = std::find_if(uses_.first_after(after < step ? 0 : after - step), uses_.end(),
                                    [&](const Event& use) { return !is_live(use.record); });
    if (found == uses_.end()) return std::nullopt;
    return found->kernel + step;
  }

  // Whether the page is expected to hold blocks just before a coming kernel; nothing where neither
  // a use nor a free is expected between `now` and then.
  std::optional<bool> holds_blocks_before(KernelNumber coming, KernelNumber now,
                                          std::uint64_t step) const {
    if (coming <= step) return std::nullopt;
    const KernelNumber used = uses_.last_before(coming - step);
    const KernelNumber emptied = emptied_.last_before(coming - step);
    if (std::max(used, emptied) + step <= now) return std::nullopt;
    return used > emptied;
  }

 private:
  struct Event {
    KernelNumber kernel = 0;
    RecordId record = kNoRecord;
  };

  // In the order of their kernels. Old ones are dropped now and then.
  class Events {
   public:
    void add(const Event& event, std::uint64_t step) {
      events_.push_back(event);
      if (events_.size() < limit_) return;
      if (step != 0 && event.kernel > step)
        events_.erase(events_.begin(), first_after(event.kernel - step - 1));
      if (events_.size() > policy::kMostPageEvents / 2)
        events_.erase(events_.begin(),
                      events_.end() - static_cast<std::ptrdiff_t>(policy::kMostPageEvents / 2));
      limit_ = std::max(policy::kLeastPageEvents, 2 * events_.size());
    }
    std::vector<Event>::const_iterator first_after(KernelNumber kernel) const {
      return std::ranges::upper_bound(events_, kernel, {}, &Event::kernel);
    }
    std::vector<Event>::const_iterator end() const { return events_.end(); }
    // 0: none.
    KernelNumber last_before(KernelNumber kernel) const {
      const auto next = std::ranges::lower_bound(events_, kernel, {}, &Event::kernel);
      return next == events_.begin() ? 0 : std::prev(next)->kernel;
    }

   private:
    std::vector<Event> events_;
    std::size_t limit_ = policy::kLeastPageEvents;
  };

  Events uses_;
  Events emptied_;
};

}  // namespace uvm::live
