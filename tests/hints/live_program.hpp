// A program that repeats a step on a device with too little memory, for tests of the live planner.
// Addresses are numbers: nothing is allocated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "hints/live/live_plan.hpp"

namespace uvm::testing {

inline constexpr std::size_t kPage = kPageBytes;

// Records every move. Refuses a discard if the test says so.
class RecordingSink final : public live::MoveSink {
 public:
  void evict(std::uintptr_t page, live::KernelNumber last_use) override {
    last_uses[page] = last_use;
    evicted.push_back(page);
    arriving.erase(page);
  }
  void evict_to_peer(std::uintptr_t page, int peer, live::KernelNumber) override {
    on_peer[page] = peer;
    arriving.erase(page);
  }
  void leave_peer(std::uintptr_t page) override {
    left_peer.push_back(page);
    on_peer.erase(page);
  }
  live::Discarded discard(std::uintptr_t page, live::KernelNumber freed) override {
    if (holds_small_blocks.contains(page)) return live::Discarded::kInUse;
    if (!discards) return live::Discarded::kRefused;
    freed_at[page] = freed;
    discarded.push_back(page);
    return live::Discarded::kYes;
  }
  void keep_copy(std::uintptr_t page) override { copied.insert(page); }
  void end_copy(std::uintptr_t page) override { copied.erase(page); }
  void use_in_place(std::uintptr_t page, live::KernelNumber) override {
    in_place.insert(page);
    arriving.erase(page);
  }
  void end_in_place(std::uintptr_t page) override { in_place.erase(page); }
  void drop(std::uintptr_t page, live::KernelNumber last_use) override {
    last_uses[page] = last_use;
    dropped.push_back(page);
    arriving.erase(page);
  }
  void hold_arrivals() override { ++holds; }
  void bring(std::uintptr_t page, live::Arrival arrival, live::KernelNumber need) override {
    brought.push_back(page);
    needs[page] = need;
    arrivals[page] = arrival;
    arriving.insert(page);
    on_peer.erase(page);
  }
  void end_group() override { groups.push_back(calls()); }
  void wait_for(std::uintptr_t page) override {
    if (arriving.erase(page) != 0) waited.push_back(page);
  }
  bool is_settled(std::uintptr_t page, live::KernelNumber) override {
    return !unsettled.contains(page);
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

  std::set<std::uintptr_t> unsettled;                      // is_settled() returns false
  std::map<std::uintptr_t, live::KernelNumber> last_uses;  // as of the last eviction
  std::map<std::uintptr_t, live::KernelNumber> freed_at;   // as of the last discard
  std::map<std::uintptr_t, live::Arrival> arrivals;        // as of the last arrival
  std::map<std::uintptr_t, live::KernelNumber> needs;      // likewise
  std::vector<std::uintptr_t> evicted;
  std::vector<std::uintptr_t> discarded;
  std::vector<std::uintptr_t> brought;
  std::vector<std::uintptr_t> waited;
  std::vector<std::uintptr_t> dropped;
  std::map<std::uintptr_t, int> on_peer;
  std::vector<std::uintptr_t> left_peer;
  std::set<std::uintptr_t> arriving;
  std::set<std::uintptr_t> copied;
  std::set<std::uintptr_t> in_place;
  std::size_t holds = 0;
  std::vector<std::size_t> groups;  // calls() at the end of each
  std::set<std::uintptr_t> holds_small_blocks;
  bool discards = true;
};

// One device's log, learner and plan.
struct LiveProgram {
  static constexpr std::uint8_t kBoth = live::kReads | live::kWrites;

  explicit LiveProgram(std::size_t chunks, Policy wanted = Policy::kPlanned)
      : policy(live::make_live_policy(wanted)), plan(log, learner, *policy, sink, chunks) {}

  static std::uintptr_t at(std::size_t page) { return (page + 16) * kPage; }

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
      return;
    }
    learner.kernel_added();
    plan.before_kernel(launch);
  }
  void graph(const std::vector<std::size_t>& pages) { kernel(pages, kBoth, live::Launch::kGraph); }
  void allocate(std::size_t page, std::size_t pages = 1) {
    const live::RecordId id = log.allocated(at(page), pages * kPage);
    plan.block_allocated(id);
  }
  void allocate_bytes(std::uintptr_t address, std::size_t size_bytes) {
    plan.block_allocated(log.allocated(address, size_bytes));
  }
  void free(std::size_t page) { plan.block_freed(log.freed(at(page))); }

  // Size in bytes of each block that was not allocated; 0 means a page.
  std::size_t small_extent = 0;
  live::UseLog log{[this](std::uintptr_t address) {
    return live::BlockExtent{address / kPage * kPage, small_extent == 0 ? kPage : small_extent};
  }};
  live::StepLearner learner{log};
  RecordingSink sink;
  std::unique_ptr<live::LivePolicy> policy;
  live::LivePlan plan;
};

}  // namespace uvm::testing
