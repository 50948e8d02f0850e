#include "tools/oversubscription/live_moves.hpp"

#include <algorithm>
#include <limits>

#include "tools/oversubscription/recorded_order.hpp"

namespace uvm::oversubscription {
namespace {

// Returns the same number of chunks as for a running program: all memory except that of the
// context. The reserve of the soft budget is no larger than the context (docs/settings.md,
// "Budgets").
std::size_t chunks_of(const uvmsim::replay::Hints& hints) {
  return hints.usable_bytes(0) / uvmsim::kBlockBytes;
}

}  // namespace

using live::BlockExtent;
using uvmsim::kBlockBytes;
using uvmsim::kPagesPerBlock;
using uvmsim::replay::Event;
using uvmsim::replay::EventKind;
using uvmsim::replay::Hints;
using uvmsim::replay::Recording;
using uvmsim::replay::Touch;

LiveMoves::LiveMoves(const Recording& recording, Policy policy)
    : recording_(recording),
      policy_(live::make_live_policy(policy)),
      runtime_(recording),
      allocations_(recording.allocation_count),
      log_([this](std::uintptr_t address) { return block_at(address); }) {}

void LiveMoves::before(std::size_t number, Hints& hints) {
  runtime_.use_hints(hints);
  const Event& event = recording_.events[number];
  if (event.kind == EventKind::kAllocate) allocate(event);
  if (event.kind == EventKind::kFree) free(event);
  if (is_kernel(event)) run_kernel(event, hints);
}

void LiveMoves::allocate(const Event& event) {
  Allocation& allocation = allocations_.at(event.block);
  allocation = {address_of(recording_, event.pages.first), event.amount, true};
  live_.emplace(allocation.address, event.block);
  if (plan_ == nullptr) return;
  const live::RecordId id = log_.allocated(allocation.address, allocation.size_bytes);
  if (id == live::kNoRecord) return;
  lanes_.begin(stream(), log_.newest() + 1);
  plan_->block_allocated(id);
  send_moves();
}

void LiveMoves::send_moves() {
  moves_.take(&sending_);
  lanes_.send(sending_);
}

void LiveMoves::free(const Event& event) {
  Allocation& allocation = allocations_.at(event.block);
  allocation.is_live = false;
  live_.erase({allocation.address, event.block});
  if (plan_ == nullptr) return;
  log_.freed(allocation.address);
  plan_->block_freed({allocation.address, allocation.size_bytes});
}

void LiveMoves::run_kernel(const Event& event, Hints& hints) {
  last_stream_ = event.stream;
  if (plan_ == nullptr) {
    if (!is_short(event, hints)) return;
    plan_ = std::make_unique<live::LivePlan>(log_, learner_, *policy_, moves_, chunks_of(hints));
  }
  std::vector<live::UseRange> uses;
  for (std::uint32_t i = 0; i < event.touch_count; ++i) {
    const Touch& touch = recording_.touches.at(event.first_touch + i);
    uses.push_back({address_of(recording_, touch.pages.first), touch.size_bytes,
                    static_cast<std::uint8_t>(touch.access)});
  }
  if (log_.add_kernel(uses) == live::kBeforeLog) {
    lanes_.begin(stream(), log_.newest() + 1);
    plan_->before_unlogged_kernel();
    send_moves();
    return;
  }
  learner_.kernel_added();
  lanes_.begin_kernel(stream(), log_.newest());
  plan_->before_kernel();
  send_moves();
}

// Returns true after kernels have used more memory than a running program's prefetches may fill.
bool LiveMoves::is_short(const Event& event, Hints& hints) {
  for (std::uint32_t i = 0; i < event.touch_count; ++i) {
    const Touch& touch = recording_.touches.at(event.first_touch + i);
    for (std::size_t page = touch.pages.first; page < touch.pages.last;
         page = (page / kPagesPerBlock + 1) * kPagesPerBlock)
      used_blocks_.insert(page / kPagesPerBlock);
  }
  return used_blocks_.size() > chunks_of(hints);
}

// Returns the block at the address. If blocks share a 4 KiB page, returns any of them.
BlockExtent LiveMoves::block_at(std::uintptr_t address) const {
  auto after = live_.upper_bound({address, std::numeric_limits<std::uint32_t>::max()});
  if (after == live_.begin()) return {};
  const Allocation& allocation = allocations_[std::prev(after)->second];
  if (address >= allocation.address + allocation.size_bytes) return {};
  return {allocation.address, allocation.size_bytes};
}

live::Discarded LiveMoves::take_free(PageNumber page, DeviceStream* user) {
  if (holds_anything(page)) return live::Discarded::kInUse;
  *user = stream();
  return live::Discarded::kYes;
}

bool LiveMoves::holds_anything(PageNumber page) const {
  const std::uintptr_t start = address_of(page);
  const auto next = live_.lower_bound({start, 0});
  if (next != live_.end() && next->first < start + kBlockBytes) return true;
  if (next == live_.begin()) return false;
  const Allocation& before = allocations_[std::prev(next)->second];
  return before.address + before.size_bytes > start;
}

}  // namespace uvm::oversubscription
