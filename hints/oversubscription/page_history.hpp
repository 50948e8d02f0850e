// When a 2 MiB page was used, and when its last block was freed, during the last step or more. If
// an allocator gets the same requests in each step, it places the blocks at the same addresses. So
// the coming step is expected to use the page like the last step.
//
// Not thread-safe, like UseLog. Calls no driver.
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
  // Records a use. `step` is the number of kernels of a step; 0: no step is known.
  void used(KernelNumber kernel, RecordId record, std::uint64_t step) {
    uses_.add({kernel, record}, step);
  }
  // Records that the page's last block was freed after that kernel and before the next kernel.
  void emptied(KernelNumber kernel, std::uint64_t step) { emptied_.add({kernel, kNoRecord}, step); }

  // Returns the first kernel after `after` that is expected to use the page for a block that is not
  // in the page now.
  template <class IsLive>
  std::optional<KernelNumber> next_use_by_others(KernelNumber after, std::uint64_t step,
                                                 IsLive is_live) const {
    const auto found = std::find_if(uses_.first_after(after < step ? 0 : after - step), uses_.end(),
                                    [&](const Event& use) { return !is_live(use.record); });
    if (found == uses_.end()) return std::nullopt;
    return found->kernel + step;
  }

  // Returns whether the page is expected to contain blocks just before a coming kernel. Returns
  // nullopt if neither a use nor a free is expected between `now` and that kernel.
  std::optional<bool> holds_blocks_before(KernelNumber coming, KernelNumber now,
                                          std::uint64_t step) const {
    if (coming <= step) return std::nullopt;
    const KernelNumber used = uses_.last_before(coming - step);
    const KernelNumber emptied = emptied_.last_before(coming - step);
    // The blocks are freed after kernel `emptied` is planned.
    if (used + step <= now && emptied + step < now) return std::nullopt;
    return used > emptied;
  }

 private:
  struct Event {
    KernelNumber kernel = 0;
    RecordId record = kNoRecord;
  };

  // Events in the order of their kernels. Old events are dropped from time to time.
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
    // Returns 0 if there is none.
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
