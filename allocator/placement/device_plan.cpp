#include "allocator/placement/device_plan.hpp"

#include <algorithm>
#include <utility>

#include "hints/oversubscription/policy.hpp"
#include "runtime/work_range.hpp"

namespace uvm {

using live::BlockExtent;
using live::KernelNumber;

DevicePlan::DevicePlan(Machine& machine, HeapState& state, const live::LivePolicy& policy,
                       PlanLock& lock, HasPlan has_plan, double most_slowdown, int device)
    : state_(state),
      lock_(lock),
      has_plan_(std::move(has_plan)),
      device_(device),
      log_([this](std::uintptr_t address) { return block_at(address); }),
      learner_(log_),
      moves_(*this, machine.device(device).capabilities.discard),
      plan_(log_, learner_, policy, moves_, chunks()),
      lanes_(machine.runtime, machine.events, machine.figure_store.hints(), device,
             machine.device(device).capabilities.batches,
             [this](PageNumber page) { return is_in_span_of_next(page); }),
      residency_(machine, state, device,
                 [this](PageNumber first, const std::vector<bool>& are_here) {
                   return compare(first, are_here);
                 }),
      peers_(machine, state, device),
      clock_(machine.runtime, device),
      thrashing_(most_slowdown) {
  measure_peers();
}

DevicePlan::~DevicePlan() {
  put_back_free_pages();
}

void DevicePlan::allocated(const BlockExtent& block, bool is_used_here,
                           const DeviceStream& stream) {
  {
    const RankedGuard lock(lock_);
    const live::RecordId id = log_.allocated(block.address, block.size_bytes);
    if (id == live::kNoRecord || !is_used_here) return;
    plan_.block_allocated(id);
  }
  lanes_.begin(stream, log_.newest() + 1);
  send_moves();
}

void DevicePlan::freed(std::uintptr_t address) {
  BlockExtent block = log_.freed(address);
  // The log does not contain small blocks, but even a small block may reach into the next page.
  if (block.size_bytes == 0) block = {address, policy::kLeastLoggedBytes};
  plan_.block_freed(block);
}

void DevicePlan::note_uses(const DeviceStream& stream, std::span<const live::UseRange> uses,
                           live::Launch launch) {
  bool is_logged = false;
  {
    const WorkRange range("plan");
    const RankedGuard lock(lock_);
    is_logged = log_.add_kernel(uses, launch) != live::kBeforeLog;
    if (is_logged) {
      learner_.kernel_added();
      plan_.before_kernel(launch);
    } else {
      plan_.before_unlogged_kernel();
    }
  }
  if (!is_logged) {
    lanes_.begin(stream, log_.newest() + 1);
    send_moves();
    return;
  }
  lanes_.begin_kernel(stream, log_.newest());
  clock_.begin(stream);
  send_moves();
  judge_step();
  look_around();
}

void DevicePlan::step_boundary() {
  const RankedGuard lock(lock_);
  learner_.step_boundary();
}

void DevicePlan::look_at_peers() {
  {
    const RankedGuard lock(lock_);
    peers_.each([this](int peer, std::size_t pages) {
      plan_.set_peer_room(peer, has_plan_(peer) ? 0 : pages);
    });
  }
  send_moves();
}

void DevicePlan::leave_peers() {
  {
    const RankedGuard lock(lock_);
    peers_.each([this](int peer, std::size_t) { plan_.set_peer_room(peer, 0); });
  }
  send_moves();
}

void DevicePlan::leave_device(const DeviceStream& stream) {
  decide(stream, [this] { plan_.leave_device(); });
  lanes_.wait_until_left();
}

void DevicePlan::leave_pages(std::span<const PageSpan> pages, const DeviceStream& stream) {
  decide(stream, [&] {
    for (const PageSpan& each : pages) {
      for (PageNumber page = each.first; page != each.end(); page = page + 1) plan_.leave(page);
    }
  });
}

std::size_t DevicePlan::bring_pages(std::span<const PageSpan> pages, const DeviceStream& stream) {
  std::size_t brought = 0;
  decide(stream, [&] {
    for (const PageSpan& each : pages) {
      for (PageNumber page = each.first; page != each.end(); page = page + 1) {
        if (plan_.bring(page)) ++brought;
      }
    }
  });
  return brought;
}

std::size_t DevicePlan::make_free_room(const DeviceStream& stream) {
  std::size_t pages = 0;
  decide(stream, [&] { pages = plan_.make_free_room(); });
  return pages;
}

bool DevicePlan::is_over() {
  if (calm_kernels_ < policy::kCalmKernels) return false;
  calm_kernels_ = 0;  // the next check follows after kCalmKernels more kernels
  const HeapGuard heap(state_);
  return heap->statistics.reserved_bytes(Facade::kDevice, device_) <= plan_.chunks() * kPageBytes;
}

void DevicePlan::correct_places(PageNumber first, std::vector<Place>* places) const {
  for (std::size_t i = 0; i < places->size(); ++i) {
    const Place place = plan_.place_of(first + i, Place::device(device_));
    if (place != Place::nowhere()) (*places)[i] = place;
  }
}

void DevicePlan::abandon() noexcept {
  lanes_.abandon();
  clock_.abandon();
}

live::Discarded DevicePlan::take_free(PageNumber page, DeviceStream* user) {
  using live::Discarded;
  free_pages_.reserve(free_pages_.size() + 1);
  const HeapGuard heap(state_);
  char* address = start_of_page(page);
  const Block* there = heap->pools.directory().find(address);
  if (there == nullptr || there->kind != BlockKind::kPacked) return Discarded::kRefused;
  const StreamKey key = heap->pools.at(there->pool).key;
  if (key.facade != Facade::kDevice || key.private_pool != 0) return Discarded::kRefused;
  *user = key.device_stream();
  if (user->device != device_ || !user->can_be_named()) return Discarded::kRefused;
  PageBlock* block = heap->pools.take_at(address, kPageBytes);
  if (block == nullptr) return Discarded::kInUse;
  free_pages_.push_back(block);
  return Discarded::kYes;
}

// ---- sending

// Decides on moves under the plan lock, and sends these moves before the next kernel of the stream.
template <class Act>
void DevicePlan::decide(const DeviceStream& stream, Act act) {
  {
    const WorkRange range("plan");
    const RankedGuard lock(lock_);
    act();
  }
  lanes_.begin(stream, log_.newest() + 1);
  send_moves();
}

// Sends what the plan has decided.
void DevicePlan::send_moves() {
  moves_.take(&sending_);
  lanes_.send(sending_);
  plan_.set_round(lanes_.sends_batches() ? policy::kRoundPages : 1);
  put_back_free_pages();
}

// ---- what the driver and the heap say

// Returns how many pages fit on the device. Called often, because the program may change its limit.
std::size_t DevicePlan::chunks() const {
  const HeapGuard heap(state_);
  const std::size_t limit_bytes = heap->device_limits[static_cast<std::size_t>(device_)];
  return std::max<std::size_t>(
      1, std::min(heap->planner.soft_budget_bytes(device_), limit_bytes) / kPageBytes);
}

BlockExtent DevicePlan::block_at(std::uintptr_t address) const {
  const HeapGuard heap(state_);
  const Block* block = heap->live_block(reinterpret_cast<const void*>(address));
  if (block == nullptr) return {};
  return {address_of(block->address()), block->requested_bytes()};
}

bool DevicePlan::is_in_span_of_next(PageNumber page) const {
  const HeapGuard heap(state_);
  const PageDirectory& directory = heap->pools.directory();
  const Block* block = directory.find(start_of_page(page));
  const Block* next = directory.find(start_of_page(page + 1));
  return block != nullptr && next != nullptr &&
         directory.span_of(*block) == directory.span_of(*next);
}

ResidencyCheck::Result DevicePlan::compare(PageNumber first, const std::vector<bool>& are_here) {
  live::LivePlan::Comparison comparison;
  {
    const RankedGuard lock(lock_);
    comparison = plan_.compare(first, are_here);
  }
  std::erase_if(comparison.differences, [this](const auto& difference) {
    return !lanes_.is_settled(difference.page, difference.settled_after);
  });
  ResidencyCheck::Result result{.expected = comparison.expected,
                                .found = comparison.found,
                                .lost = 0,
                                .corrected = {},
                                .unknown = std::move(comparison.unknown)};
  for (const auto& difference : comparison.differences) {
    result.corrected.push_back(difference.page);
    if (!difference.is_here) ++result.lost;
  }
  const RankedGuard lock(lock_);
  plan_.correct(comparison.differences);
  return result;
}

void DevicePlan::put_back_free_pages() noexcept {
  if (free_pages_.empty()) return;
  const HeapGuard heap(state_);
  for (PageBlock* block : free_pages_) heap->pools.put(block, heap->pools.at(block->pool));
  free_pages_.clear();
}

void DevicePlan::look_around() {
  const std::uint64_t kernels = plan_.figures().kernels;
  if (kernels % policy::kLookKernels != 0) return;
  residency_.compare_some();
  const std::size_t pages = chunks();
  const std::size_t now =
      std::max<std::size_t>(1, pages - std::min(pages, residency_.taken_pages()));
  if (now != plan_.chunks()) {
    const RankedGuard lock(lock_);
    plan_.set_chunks(now);
  }
  if (kernels % policy::kMeasureKernels == 0) {
    {
      const RankedGuard lock(lock_);
      plan_.end_peer_period();
    }
    measure_peers();
  } else {
    look_at_peers();
  }
}

void DevicePlan::measure_peers() {
  peers_.measure([this](int peer) { return plan_.pages_of_peer(peer); });
  look_at_peers();
}

void DevicePlan::judge_step() {
  const live::LiveFigures& now = plan_.figures();
  const std::uint64_t moved = now.brought_pages + now.evicted_pages + now.missing_pages;
  calm_kernels_ = moved == moved_pages_ ? calm_kernels_ + 1 : 0;
  moved_pages_ = moved;
  thrashing_.kernel_added(learner_.step_kernels(), plan_.copied_pages() * kPageBytes,
                          plan_.chunks() * kPageBytes, clock_);
  if (const auto step = thrashing_.take_step()) {
    const RankedGuard lock(lock_);
    plan_.step_took(*step);
  }
}

}  // namespace uvm
