#include "tools/oversubscription/recorded_order.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <uvmalloc/sim/uvmsim.h>
#include "sim/engine/units.hpp"

namespace uvm::oversubscription {
namespace {

using uvmsim::bytes_of;
using uvmsim::kPageBytes;
using uvmsim::kPagesPerBlock;
using uvmsim::page_mask;
using uvmsim::PageMask;
using uvmsim::PageRange;
using uvmsim::replay::Event;
using uvmsim::replay::EventKind;
using uvmsim::replay::Recording;
using uvmsim::replay::Touch;

template <class Visit>
void each_block(PageRange pages, Visit visit) {
  for (std::size_t page = pages.first; page < pages.last;) {
    const std::size_t first = page % kPagesPerBlock;
    const std::size_t count = std::min(kPagesPerBlock - first, pages.last - page);
    visit(static_cast<std::uint32_t>(page / kPagesPerBlock), page_mask(first, count));
    page += count;
  }
}

// Returns the pages that belong only to the allocation: its first and last may be shared.
PageRange own_pages(const Event& event) {
  PageRange pages = event.pages;
  if (event.amount == (pages.last - pages.first) * kPageBytes) return pages;
  return pages.last - pages.first < 3 ? PageRange{0, 0}
                                      : PageRange{pages.first + 1, pages.last - 1};
}

struct Used {
  PageMask pages;
  bool writes = false;
};

std::map<std::uint32_t, Used> used_by(const Recording& recording, const Event& event) {
  std::map<std::uint32_t, Used> result;
  for (std::uint32_t i = 0; i < event.touch_count; ++i) {
    const Touch& touch = recording.touches.at(event.first_touch + i);
    each_block(touch.pages, [&](std::uint32_t block, const PageMask& pages) {
      Used& used = result[block];
      used.pages |= pages;
      used.writes |= (touch.access & UVMSIM_WRITE) != 0;
    });
  }
  return result;
}

class OrderBuilder {
 public:
  explicit OrderBuilder(const Recording& recording) : recording_(recording) {
    const std::size_t blocks = recording.block_addresses.size();
    made_.order.block_count = blocks;
    made_.live.resize(blocks);
    held_.resize(blocks);
  }

  RecordedOrder make() {
    for (const Event& event : recording_.events) look_forward(event);
    made_.live_at_end = held_;
    for (const PageMask& pages : held_) made_.order.live_at_end.push_back(bytes_of(pages));
    needed_.assign(held_.size(), ~PageMask{});
    next_.resize(held_.size());
    for (std::size_t block = 0; block < held_.size(); ++block)
      next_[block] = made_.live[block].size();
    std::size_t kernel = made_.order.kernels.size();
    for (std::size_t i = recording_.events.size(); i-- > 0;) {
      const Event& event = recording_.events[i];
      if (is_kernel(event)) {
        look_back(event, --kernel);
      } else {
        end_contents(event, &needed_);
      }
    }
    return std::move(made_);
  }

 private:
  static void end_contents(const Event& event, std::vector<PageMask>* pages_of) {
    if (event.kind != EventKind::kAllocate && event.kind != EventKind::kFree) return;
    each_block(own_pages(event),
               [&](std::uint32_t block, const PageMask& pages) { (*pages_of)[block] &= ~pages; });
  }

  // Tracks which pages have contents before each use.
  void look_forward(const Event& event) {
    made_.kernel_of_event.push_back(made_.order.kernels.size());
    end_contents(event, &held_);
    if (!is_kernel(event)) return;
    std::vector<plan::BlockUse> uses;
    for (const auto& [block, used] : used_by(recording_, event)) {
      uses.push_back({block, 0, used.writes});
      made_.live[block].push_back({made_.order.kernels.size(), held_[block]});
      held_[block] |= used.pages;
    }
    made_.order.kernels.push_back(std::move(uses));
  }

  // Tracks which of the pages with contents are used later.
  void look_back(const Event& event, std::size_t kernel) {
    for (const auto& [block, used] : used_by(recording_, event)) {
      needed_[block] |= used.pages;
      RecordedOrder::LivePages& live = made_.live[block][--next_[block]];
      live.pages &= needed_[block];
    }
    for (plan::BlockUse& use : made_.order.kernels[kernel])
      use.live_bytes = bytes_of(made_.live[use.block][next_[use.block]].pages);
  }

  const Recording& recording_;
  RecordedOrder made_;
  std::vector<PageMask> held_;    // by block: pages with contents
  std::vector<PageMask> needed_;  // by block: pages that later kernels use
  std::vector<std::size_t> next_;
};

}  // namespace

std::uintptr_t address_of(const Recording& recording, std::size_t page) {
  return recording.block_addresses.at(page / kPagesPerBlock) + page % kPagesPerBlock * kPageBytes;
}

bool is_kernel(const Event& event) {
  return event.kind == EventKind::kKernel || event.kind == EventKind::kCopy;
}

const PageMask& RecordedOrder::live_before(std::uint32_t block, std::size_t kernel) const {
  const auto& uses = live[block];
  const auto found = std::ranges::lower_bound(uses, kernel, {}, &LivePages::kernel);
  return found == uses.end() ? live_at_end[block] : found->pages;
}

RecordedOrder order_of(const Recording& recording) {
  return OrderBuilder(recording).make();
}

std::vector<std::uint32_t> blocks_of(const Recording& recording, const Event& event) {
  std::vector<std::uint32_t> result;
  for (std::uint32_t i = 0; i < event.touch_count; ++i) {
    const PageRange pages = recording.touches.at(event.first_touch + i).pages;
    if (pages.first == pages.last) continue;
    for (std::size_t block = pages.first / kPagesPerBlock;
         block <= (pages.last - 1) / kPagesPerBlock; ++block)
      result.push_back(static_cast<std::uint32_t>(block));
  }
  std::ranges::sort(result);
  const auto repeated = std::ranges::unique(result);
  result.erase(repeated.begin(), repeated.end());
  return result;
}

std::vector<std::uint64_t> live_bytes(const Recording& recording) {
  std::set<std::uint32_t> touched;  // numbers of allocations
  const std::size_t first = recording.marks.empty() ? 0 : recording.marks.front().event;
  for (std::size_t index = first; index < recording.events.size(); ++index) {
    const Event& event = recording.events[index];
    if (!is_kernel(event)) continue;
    for (std::uint32_t i = 0; i < event.touch_count; ++i)
      touched.insert(recording.touches[event.first_touch + i].block);
  }
  std::vector<std::uint64_t> result;
  std::set<std::uint32_t> live;  // a repeated step may lack a free
  std::uint64_t bytes = 0;
  for (const Event& event : recording.events) {
    const bool is_counted = touched.contains(event.block);
    if (event.kind == EventKind::kAllocate && is_counted && live.insert(event.block).second)
      bytes += event.amount;
    if (event.kind == EventKind::kFree && live.erase(event.block) != 0) bytes -= event.amount;
    result.push_back(bytes);
  }
  return result;
}

Footprint footprint_of(const Recording& recording, const RecordedOrder& order) {
  Footprint result;
  const std::size_t first = recording.marks.empty() ? 0 : recording.marks.front().event;
  const std::vector<std::uint64_t> bytes = live_bytes(recording);
  for (std::size_t index = first; index < recording.events.size(); ++index) {
    result.peak_bytes = std::max(result.peak_bytes, bytes[index]);
    if (is_kernel(recording.events[index]))
      result.largest_kernel_blocks = std::max(
          result.largest_kernel_blocks, order.order.kernels[order.kernel_of_event[index]].size());
  }
  return result;
}

}  // namespace uvm::oversubscription
