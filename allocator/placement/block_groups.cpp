#include "allocator/placement/block_groups.hpp"

#include <algorithm>
#include <utility>

#include "allocator/policy/allocation_policy.hpp"

namespace uvm {
namespace {

PageNumber first_of(const Block& block) {
  return page_of(address_of(block.address()));
}
PageNumber end_of(const Block& block) {
  return page_of(address_of(block.end()) + kPageBytes - 1);
}

// Collects the pages of a group from the blocks of a span, in the order of addresses.
class PageCollector {
 public:
  // The blocks before this part, which are outside the group, end before `free_from`.
  explicit PageCollector(PageNumber free_from) : free_from_(free_from) {}

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
    // Blocks are added in order, so only the last page can be shared.
    while (!pages_.empty() && pages_.back().end() > first_of(block)) {
      if (--pages_.back().count == 0) pages_.pop_back();
    }
  }
  std::vector<PageSpan> take() { return std::move(pages_); }

 private:
  std::vector<PageSpan> pages_;
  PageNumber free_from_;  // earlier pages may be shared with blocks outside the group
};

constexpr int kNoDevice = -1;

// Returns the device that uses a block with pages of its own. A device may still use device memory
// that a move has shared with the host.
int device_of(const LockedHeap& heap, const Block& block) {
  if (block.kind == BlockKind::kSmall) return kNoDevice;
  const Place place = block.use.location();
  if (place.is_device()) return place.index;
  const StreamKey& key = heap->pools.at(block.pool).key;
  return key.facade == Facade::kDevice ? key.device : kNoDevice;
}

}  // namespace

const char* to_string(GroupState state) {
  switch (state) {
    case GroupState::kAwake:
      return "awake";
    case GroupState::kAsleep:
      return "asleep";
    case GroupState::kDiscarded:
      return "discarded";
    case GroupState::kInFile:
      return "in a file";
  }
  return "";
}

std::shared_ptr<BlockGroups::Owner> BlockGroups::owner(
    const std::function<std::shared_ptr<Owner>()>& make) {
  if (auto known = owner()) return known;
  std::shared_ptr<Owner> made = make();  // without the lock
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
  return block == nullptr ? kNoGroup : group_of(heap, *block);
}

GroupNumber BlockGroups::group_of(const LockedHeap& heap, const Block& block) {
  if (block.has_no_side_state) return kNoGroup;
  const BlockSideState* state = heap->pools.side_states().find(&block);
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
  const HeapGuard heap(state_);
  for (const auto& span : heap->spans.spans()) {
    std::map<int, PageCollector> pages;
    PageNumber end{};  // the end of the blocks visited so far
    const auto note = [&](const Block& block, int device) {
      if (device != kNoDevice) pages.try_emplace(device, end);
      for (auto& [of, collector] : pages) {
        of == device ? collector.add_member(block) : collector.add_other(block);
      }
      end = std::max(end, end_of(block));
    };
    heap->pools.directory().each_block(
        *span,
        [&](const Block& block) {
          if (block.now() != BlockState::kLive) return;
          const bool is_member = group_of(heap, block) == group;
          if (is_member) {
            ++memory.blocks;
            memory.bytes += block.requested_bytes();
          }
          // The group is recorded for the run that contains a small block.
          if (block.kind != BlockKind::kSmall)
            note(block, is_member ? device_of(heap, block) : kNoDevice);
        },
        [&](const PageBlock& run) { note(run, kNoDevice); });
    for (auto& [device, collector] : pages) {
      for (const PageSpan& each : collector.take()) {
        memory.pages[device].push_back(each);
        if (span->ordinary) memory.ordinary.push_back(each);
      }
    }
  }
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

std::vector<Place> BlockGroups::found_places(const PageSpan& pages, int device) const {
  std::vector<Place> found;
  if (!machine_.device(device).capabilities.finds_pages || machine_.in_forked_child()) return found;
  found.resize(pages.count);
  const RuntimeStatus status = machine_.runtime.find_pages(
      device, start_of_page(pages.first), pages.count * kPageBytes, kPageBytes, found.data());
  if (!status.ok()) found.clear();
  return found;
}

std::vector<Place> BlockGroups::real_places_of(const PageSpan& pages, int device) const {
  std::vector<Place> places = places_of(pages);
  const std::vector<Place> found = found_places(pages, device);
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (found[i].is_device()) places[i] = found[i];
  }
  return places;
}

void BlockGroups::leave(std::span<const PageSpan> pages, const DeviceStream& stream) {
  if (machine_.in_forked_child()) return;
  live_.move_pages(pages, Place::host(), stream);
  // A plan knows which pages kernels have brought back to the device. Pages that were never touched
  // need no move. Of pages that hints do not move, only the driver knows which were touched.
  const bool is_known = live_.plans_for(stream.device);
  const bool is_unknown =
      machine_.budget.devices[static_cast<std::size_t>(stream.device)].coherent &&
      !machine_.device(stream.device).capabilities.finds_pages;
  const auto may_leave = [&](Place place) {
    return is_known ? place.is_device() : is_unknown || place != Place::nowhere();
  };
  for (const PageSpan& each : pages) {
    std::vector<Place> places = places_of(each);
    if (std::ranges::find(places, Place::nowhere()) != places.end())
      places = real_places_of(each, stream.device);
    each_run(each, places, may_leave,
             [&](const PageSpan& run) { move_run(run, Place::host(), stream); });
  }
}

std::size_t BlockGroups::come(std::span<const PageSpan> pages, const DeviceStream& stream,
                              bool waits) {
  if (machine_.in_forked_child()) return 0;
  const Place device = Place::device(stream.device);
  const std::size_t brought = live_.move_pages(pages, device, stream) * kPageBytes;
  if (live_.plans_for(stream.device)) return brought;
  std::size_t sent = 0;
  for (const PageSpan& each : pages) {
    each_run(
        each, places_of(each), [device](Place place) { return place != device; },
        [&](const PageSpan& run) { sent += move_run(run, device, stream, waits); });
  }
  return sent;
}

void BlockGroups::find_evicted(std::span<const PageSpan> pages, int device) {
  for (const PageSpan& each : pages) {
    each_run(
        each, found_places(each, device), [](Place place) { return place.is_host(); },
        [&](const PageSpan& run) {
          const HeapGuard heap(state_);
          heap->ledger.set(start_of_page(run.first), run.count * kPageBytes, Place::host());
        });
  }
}

void BlockGroups::note_on_host(std::span<const PageSpan> pages) {
  const HeapGuard heap(state_);
  for (const PageSpan& each : pages)
    heap->ledger.set(start_of_page(each.first), each.count * kPageBytes, Place::host());
}

// Returns the bytes that the driver was asked to move.
std::size_t BlockGroups::move_run(const PageSpan& run, Place destination,
                                  const DeviceStream& stream, bool waits) {
  const bool to_device = destination.is_device();
  HintPlan plan;
  std::size_t room_bytes = 0;
  {
    const HeapGuard heap(state_);
    if (to_device) room_bytes = heap->planner.credit_bytes(destination.index);
    // A kernel may have brought pages back to the device since they were evicted.
    if (!to_device) {
      heap->ledger.set(start_of_page(run.first), run.count * kPageBytes,
                       Place::device(stream.device));
    }
    plan = heap->planner.plan_wanted_move(start_of_page(run.first), run.count * kPageBytes,
                                          destination);
  }
  if (plan.empty()) return 0;
  bool sent = true;
  if (machine_.device(stream.device).capabilities.prefetch_blocks) {
    hints_.send(plan, stream.device, to_device ? DeviceStream{} : stream,
                to_device ? stream : DeviceStream{});
  } else {
    sent = to_device ? bulk_.come(run, room_bytes, stream, waits) : bulk_.leave(run, stream);
  }
  if (sent) return run.count * kPageBytes;
  const HeapGuard heap(state_);
  HintDispatcher::forget(heap, plan);
  return 0;
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

void BlockGroups::discard(std::span<const PageSpan> pages, int device) {
  if (machine_.in_forked_child() || !machine_.device(device).capabilities.discard) return;
  for (const PageSpan& each : pages) {
    const std::size_t size_bytes = each.count * kPageBytes;
    if (!machine_.sender.discard(device, start_of_page(each.first), size_bytes).ok()) continue;
    const HeapGuard heap(state_);
    heap->ledger.discard(start_of_page(each.first), size_bytes);
  }
}

void BlockGroups::want_uses(bool wanted) noexcept {
  if (wants_uses_.exchange(wanted, std::memory_order_relaxed) != wanted)
    live_.set_wanted_by_groups(wanted);
}

void BlockGroups::note_uses(const DeviceStream& stream,
                            std::span<const live::UseRange> uses) noexcept {
  if (!wants_uses_.load(std::memory_order_relaxed) || machine_.in_forked_child()) return;
  const auto known = owner();
  if (known == nullptr) return;
  bool is_related = false;
  for (const live::UseRange& use : uses) {
    const GroupNumber group = group_of(reinterpret_cast<const void*>(use.address));
    if (group == kNoGroup) continue;
    is_related = true;
    const PageNumber first = page_of(use.address);
    const PageNumber end = page_of(use.address + use.size_bytes + kPageBytes - 1);
    known->group_used(group, {first, end - first}, stream);
  }
  if (is_related) {
    unrelated_kernels_.store(0, std::memory_order_relaxed);
  } else if (unrelated_kernels_.fetch_add(1, std::memory_order_relaxed) + 1 ==
             policy::kMostUnrelatedKernels) {
    unrelated_kernels_.store(0, std::memory_order_relaxed);
    known->groups_unused();
  }
}

std::size_t BlockGroups::room_bytes(const DeviceStream& stream) {
  if (const auto pages = live_.make_free_room(stream)) return *pages * kPageBytes;
  const HeapGuard heap(state_);
  return heap->planner.credit_bytes(stream.device);
}

}  // namespace uvm
