#include "allocator/placement/block_groups.hpp"

#include <algorithm>
#include <utility>

namespace uvm {
namespace {

// Collects the pages of a group from all blocks, in the order of addresses.
class PageCollector {
 public:
  // All live bytes of these pages must belong to the group.
  void add_member(const Block& block) {
    const PageNumber first = std::max(first_of(block), free_from_);
    const PageNumber end = end_of(block);
    if (first >= end) return;
    if (!pages_.empty() && pages_.back().end() >= first) {
      pages_.back().count = std::max(pages_.back().end(), end) - pages_.back().first;
    } else {
      pages_.push_back({first, end - first});
    }
  }
  void add_other(const Block& block) {
    free_from_ = std::max(free_from_, end_of(block));
    // Blocks come in order, so only the last page can be shared.
    while (!pages_.empty() && pages_.back().end() > first_of(block)) {
      if (--pages_.back().count == 0) pages_.pop_back();
    }
  }
  std::vector<PageSpan> take() { return std::move(pages_); }

 private:
  static PageNumber first_of(const Block& block) { return page_of(address_of(block.address())); }
  static PageNumber end_of(const Block& block) {
    return page_of(address_of(block.end()) + kPageBytes - 1);
  }

  std::vector<PageSpan> pages_;
  PageNumber free_from_{};  // the pages before are shared with blocks outside the group
};

}  // namespace

const char* to_string(GroupState state) {
  switch (state) {
    case GroupState::kAwake:
      return "awake";
    case GroupState::kAsleep:
      return "asleep";
    case GroupState::kDiscarded:
      return "discarded";
  }
  return "";
}

std::size_t GroupMemory::page_bytes() const {
  std::size_t count = 0;
  for (const PageSpan& each : pages) count += each.count;
  return count * kPageBytes;
}

std::shared_ptr<BlockGroups::Owner> BlockGroups::owner(
    const std::function<std::shared_ptr<Owner>()>& make) {
  std::shared_ptr<Owner> made = make();
  const HeapGuard heap(state_);
  heap.proves(state_);
  if (owner_ == nullptr) owner_ = std::move(made);
  return owner_;
}

bool BlockGroups::put(const void* address, GroupNumber group) {
  machine_.require_device();
  const HeapGuard heap(state_);
  Block* block = heap->live_block(address);
  if (block == nullptr) return false;
  if (group == kNoGroup && block->has_no_side_state) return true;
  heap->pools.side_states().make(block).group = static_cast<std::uint32_t>(group);
  return true;
}

GroupNumber BlockGroups::group_of(const void* address) const {
  const HeapGuard heap(state_);
  const Block* block = heap->live_block(address);
  if (block == nullptr || block->has_no_side_state) return kNoGroup;
  const BlockSideState* state = heap->pools.side_states().find(block);
  return state == nullptr ? kNoGroup : GroupNumber{state->group};
}

GroupNumber BlockGroups::leave(const LockedHeap& heap, const Block& block) noexcept {
  BlockSideState* state = heap->pools.side_states().find(&block);
  return state == nullptr ? kNoGroup : GroupNumber{std::exchange(state->group, 0)};
}

std::shared_ptr<BlockGroups::Owner> BlockGroups::owner() const {
  const HeapGuard heap(state_);
  heap.proves(state_);
  return owner_;
}

void BlockGroups::note_freed(GroupNumber group, const Block& block) noexcept {
  if (const auto known = owner()) known->block_freed(group, block.address(), block.size_bytes());
}

GroupMemory BlockGroups::memory_of(GroupNumber group) const {
  GroupMemory memory;
  PageCollector pages;
  const HeapGuard heap(state_);
  for (const auto& span : heap->spans.spans()) {
    heap->pools.directory().each_block(
        *span,
        [&](const Block& block) {
          if (block.now() != BlockState::kLive) return;
          const BlockSideState* state =
              block.has_no_side_state ? nullptr : heap->pools.side_states().find(&block);
          const bool is_member = state != nullptr && GroupNumber{state->group} == group;
          if (is_member) {
            ++memory.blocks;
            memory.bytes += block.requested_bytes();
          }
          if (block.kind == BlockKind::kSmall) return;  // its run has been visited
          is_member ? pages.add_member(block) : pages.add_other(block);
        },
        [&](const PageBlock& run) { pages.add_other(run); });
  }
  memory.pages = pages.take();
  return memory;
}

std::vector<Place> BlockGroups::places_of(const PageSpan& pages) const {
  std::vector<Place> places;
  {
    const HeapGuard heap(state_);
    places = heap->ledger.places_of(start_of_page(pages.first), pages.count * kPageBytes);
  }
  live_.correct_places(start_of_page(pages.first), &places);
  return places;
}

void BlockGroups::move(std::span<const PageSpan> pages, Place destination,
                       const DeviceStream& stream) {
  machine_.check_place(destination);
  if (machine_.in_forked_child()) return;
  live_.move_pages(pages, destination, stream);
  if (destination.is_device() && live_.plans_for(destination.index)) return;
  for (const PageSpan& each : pages) {
    each_elsewhere(each, destination,
                   [&](const PageSpan& run) { move_run(run, destination, stream); });
  }
}

void BlockGroups::move_run(const PageSpan& run, Place destination, const DeviceStream& stream) {
  const bool to_device = destination.is_device();
  HintPlan plan;
  std::size_t room_bytes = 0;
  {
    const HeapGuard heap(state_);
    if (to_device) room_bytes = heap->planner.credit_bytes(destination.index);
    plan = heap->planner.plan_move(start_of_page(run.first), run.count * kPageBytes, nullptr,
                                   destination);
  }
  if (plan.empty()) return;
  if (machine_.device(stream.device).capabilities.prefetch_blocks) {
    hints_.send(plan, stream.device, to_device ? DeviceStream{} : stream,
                to_device ? stream : DeviceStream{});
    return;
  }
  const bool sent = to_device ? bulk_.come(run, room_bytes, stream) : bulk_.leave(run, stream);
  if (sent) return;
  const HeapGuard heap(state_);
  HintDispatcher::forget(heap, plan);
}

// Calls `visit` for runs of pages that are not at the place. Pages that were never touched have
// nothing to move to the host.
template <class Visit>
void BlockGroups::each_elsewhere(const PageSpan& pages, Place place, Visit visit) const {
  const std::vector<Place> places = places_of(pages);
  const auto is_elsewhere = [place](Place at) {
    return at != place && (place.is_device() || at != Place::nowhere());
  };
  for (auto first = places.begin(); first != places.end();) {
    first = std::find_if(first, places.end(), is_elsewhere);
    const auto end = std::find_if_not(first, places.end(), is_elsewhere);
    const auto at = static_cast<std::size_t>(first - places.begin());
    if (first != end) visit(PageSpan{pages.first + at, static_cast<std::size_t>(end - first)});
    first = end;
  }
}

void BlockGroups::advise(std::span<const PageSpan> pages, const WantedPlacement& wanted,
                         int device) {
  if (machine_.in_forked_child()) return;
  for (const PageSpan& each : pages) {
    HintPlan plan;
    {
      const HeapGuard heap(state_);
      plan = heap->planner.plan_advice(start_of_page(each.first), each.count * kPageBytes, nullptr,
                                       wanted);
    }
    hints_.send(plan, device);
  }
}

std::size_t BlockGroups::discard(std::span<const PageSpan> pages, int device) {
  if (machine_.in_forked_child() || !machine_.device(device).capabilities.discard) return 0;
  std::size_t discarded = 0;
  for (const PageSpan& each : pages) {
    const std::size_t size_bytes = each.count * kPageBytes;
    if (!machine_.sender.discard(device, start_of_page(each.first), size_bytes).ok()) continue;
    discarded += size_bytes;
    const HeapGuard heap(state_);
    heap->ledger.discard(start_of_page(each.first), size_bytes);
  }
  return discarded;
}

std::size_t BlockGroups::room_bytes(int device) const {
  machine_.check_device(device);
  const HeapGuard heap(state_);
  return heap->planner.credit_bytes(device);
}

}  // namespace uvm
