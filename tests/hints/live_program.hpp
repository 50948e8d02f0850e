// A program that repeats a step on a device with too little memory, for tests of the live planner.
// Addresses are numbers: nothing is allocated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "hints/oversubscription/live_plan.hpp"

namespace uvm::testing {

inline constexpr std::size_t kPage = kPageBytes;

// Owns all memory, and records the moves. Refuses a discard if the test says so.
class MoveRecord final : public live::PageOwner {
 public:
  bool is_ours(PageNumber) const override { return true; }
  live::Discarded take_free(PageNumber page, DeviceStream*) override {
    if (holds_small_blocks.contains(page)) return live::Discarded::kInUse;
    return discards ? live::Discarded::kYes : live::Discarded::kRefused;
  }
  void add(live::MoveList* moves) {
    std::vector<live::PlannedMove> taken;
    moves->take(&taken);
    for (const live::PlannedMove& move : taken) add(move);
  }
  std::size_t calls() const {
    return evicted.size() + dropped.size() + discarded.size() + brought.size() + waited.size();
  }
  void clear() {
    evicted.clear();
    dropped.clear();
    discarded.clear();
    brought.clear();
    waited.clear();
  }

  std::map<PageNumber, live::KernelNumber> last_uses;  // as of the last eviction
  std::map<PageNumber, live::KernelNumber> freed_at;   // as of the last discard
  std::map<PageNumber, live::Arrival> arrivals;        // as of the last arrival
  std::map<PageNumber, live::KernelNumber> needs;      // likewise
  std::map<PageNumber, std::size_t> free_chunks;       // likewise
  std::vector<PageNumber> evicted;
  std::vector<PageNumber> discarded;
  std::vector<PageNumber> brought;
  std::vector<PageNumber> waited;
  std::vector<PageNumber> dropped;
  std::map<PageNumber, int> on_peer;
  std::vector<PageNumber> left_peer;
  std::set<PageNumber> arriving;
  std::set<PageNumber> copied;
  std::set<PageNumber> in_place;
  std::size_t held = 0;             // arrivals that follow their stream
  std::vector<std::size_t> groups;  // moves in each, but for those before the first
  std::set<PageNumber> holds_small_blocks;
  bool discards = true;

 private:
  void add(const live::PlannedMove& move) {
    using Kind = live::PlannedMove::Kind;
    if (move.begins_group) groups.push_back(0);
    if (!groups.empty() && move.kind != Kind::kWait) ++groups.back();
    switch (move.kind) {
      case Kind::kEndCopy:
        copied.erase(move.page);
        break;
      case Kind::kEndInPlace:
        in_place.erase(move.page);
        break;
      case Kind::kDrop:
        last_uses[move.page] = move.kernel;
        dropped.push_back(move.page);
        arriving.erase(move.page);
        break;
      case Kind::kUseInPlace:
        in_place.insert(move.page);
        arriving.erase(move.page);
        break;
      case Kind::kLeave:
        arriving.erase(move.page);
        if (move.place.is_device()) {
          on_peer[move.page] = move.place.index;
        } else {
          last_uses[move.page] = move.kernel;
          evicted.push_back(move.page);
        }
        break;
      case Kind::kLeavePeer:
        left_peer.push_back(move.page);
        on_peer.erase(move.page);
        break;
      case Kind::kDiscard:
        freed_at[move.page] = move.kernel;
        discarded.push_back(move.page);
        break;
      case Kind::kKeepCopy:
        copied.insert(move.page);
        break;
      case Kind::kBring:
        brought.push_back(move.page);
        needs[move.page] = move.kernel;
        free_chunks[move.page] = move.free_chunks;
        arrivals[move.page] = move.arrival;
        arriving.insert(move.page);
        on_peer.erase(move.page);
        if (move.follows_stream) ++held;
        break;
      case Kind::kWait:
        if (arriving.erase(move.page) != 0) waited.push_back(move.page);
        break;
    }
  }
};

// One device's log, learner and plan.
struct LiveProgram {
  static constexpr std::uint8_t kBoth = live::kReads | live::kWrites;

  explicit LiveProgram(std::size_t chunks, Policy wanted = Policy::kPlanned)
      : policy(live::make_live_policy(wanted)), plan(log, learner, *policy, moves, chunks) {}

  static std::uintptr_t at(std::size_t page) { return (page + 16) * kPage; }
  static PageNumber page(std::size_t page) { return page_of(at(page)); }

  // Runs a kernel that uses the blocks that begin at these pages.
  void kernel(const std::vector<std::size_t>& pages, std::uint8_t access = kBoth,
              live::Launch launch = live::Launch::kKernel) {
    std::vector<live::UseRange> uses;
    for (const std::size_t page : pages) uses.push_back({at(page), kPage, access});
    kernel_of(uses, launch);
  }
  void kernel_of(const std::vector<live::UseRange>& uses,
                 live::Launch launch = live::Launch::kKernel) {
    if (log.add_kernel(uses, launch) == live::kBeforeLog) {
      plan.before_unlogged_kernel();
    } else {
      learner.kernel_added();
      plan.before_kernel(launch);
    }
    record.add(&moves);
  }
  void graph(const std::vector<std::size_t>& pages) { kernel(pages, kBoth, live::Launch::kGraph); }
  void allocate(std::size_t page, std::size_t pages = 1) {
    const live::RecordId id = log.allocated(at(page), pages * kPage);
    plan.block_allocated(id);
    record.add(&moves);
  }
  void allocate_bytes(std::uintptr_t address, std::size_t size_bytes) {
    plan.block_allocated(log.allocated(address, size_bytes));
    record.add(&moves);
  }
  void set_peer_room(int device, std::size_t pages) {
    plan.set_peer_room(device, pages);
    record.add(&moves);
  }
  void leave_device() {
    plan.leave_device();
    record.add(&moves);
  }
  void free(std::size_t page) { plan.block_freed(log.freed(at(page))); }

  // Size in bytes of each block that was not allocated; 0 means a page.
  std::size_t small_extent = 0;
  live::UseLog log{[this](std::uintptr_t address) {
    return live::BlockExtent{address / kPage * kPage, small_extent == 0 ? kPage : small_extent};
  }};
  live::StepLearner learner{log};
  MoveRecord record;
  live::MoveList moves{record, /*discards=*/true};
  std::unique_ptr<live::LivePolicy> policy;
  live::LivePlan plan;
};

}  // namespace uvm::testing
