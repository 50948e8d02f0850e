// Regions of a program. While a region is open, allocations of its thread, and of autograd's
// threads that work for it, count against the region's budget, and hints follow the region's
// policy; its blocks join the region's group. Regions nest: a request counts in each, and the
// innermost policy and group apply. This file also
// tracks blocks that need more work when they are freed. Any thread may allocate and free; one
// thread opens and closes a region.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/custom_class.h>

#include <uvmalloc/facade.hpp>
#include <uvmalloc/groups.hpp>
#include "hints/placement_planner.hpp"

namespace uvm::torch_plugin {

inline constexpr std::uint32_t kNoGroupHere = UINT32_MAX;

class RegionState final : public c10::DebugInfoBase,
                          public std::enable_shared_from_this<RegionState> {
 public:
  std::optional<Policy> policy;
  std::size_t budget_bytes = SIZE_MAX;
  std::uint32_t group = 0;  // 0: the outer region's; kNoGroupHere: none
  bool groups_device_memory_only = false;
  std::shared_ptr<RegionState> outer;
  std::atomic<std::size_t> used_bytes = 0;
  std::atomic<bool> open = true;
};

// The object that Python holds. Its destructor closes the region.
class Region final : public torch::CustomClassHolder {
 public:
  // `policy` is a value of UVMALLOC_POLICY; empty: the outer region's policy. 0 bytes: no budget.
  // Group 0: the outer region's group; -1: no group.
  Region(const std::string& policy, std::int64_t budget_bytes, std::int64_t group,
         bool groups_device_memory_only);
  ~Region() override;
  void close();

 private:
  std::shared_ptr<RegionState> state_;
};

// Captures the regions that are open on the constructing thread, for threads that work for that
// thread. Each of those threads calls enter() and leave() in pairs.
class ThreadRegions final : public torch::CustomClassHolder {
 public:
  ThreadRegions();
  void enter() const;
  void leave() const;

 private:
  std::shared_ptr<RegionState> innermost_;  // nullptr: no region is open
};

// Returns the policy that applies on this thread.
Policy effective_policy();

// While an object of this class lives, the planner follows effective_policy() on this thread.
class PolicyScope {
 public:
  PolicyScope();
  ~PolicyScope();
  PolicyScope(const PolicyScope&) = delete;
  PolicyScope& operator=(const PolicyScope&) = delete;

 private:
  std::optional<Policy> before_;
};

// Charges `size_bytes` to the regions that are open on this thread. Throws c10::OutOfMemoryError if
// that exceeds a budget. Pass the result to keep_charge() or refund().
std::shared_ptr<RegionState> charge(Facade facade, std::size_t size_bytes);
void refund(const std::shared_ptr<RegionState>& region, std::size_t size_bytes);
// Keeps the charge until the block is freed. For a block of a private pool, refunds the charge:
// such blocks live as long as their pool and do not count.
void keep_charge(std::shared_ptr<RegionState> region, void* address, std::size_t size_bytes);

// Call it instead of keep_charge() if the request has failed. Refunds the charge, and frees the
// block at `address` unless `address` is nullptr.
void give_up(const std::shared_ptr<RegionState>& region, void* address, std::size_t size_bytes);

// Records that the block has its own advice, which is undone when the block is freed.
void note_advised(void* address);

// Every allocation loads open_regions, and every free loads noted_blocks_count.
inline std::atomic<int> open_regions = 0;
inline std::atomic<std::size_t> noted_blocks_count = 0;  // blocks in a region or with advice

// Returns whether any region is open in this process, or memory outside of regions has a group.
inline bool any_region() {
  return open_regions.load(std::memory_order_relaxed) != 0;
}

// Call forget_block() before a block is freed.
void forget_noted_block(void* address);
inline void forget_block(void* address) {
  if (noted_blocks_count.load(std::memory_order_relaxed) != 0) [[unlikely]]
    forget_noted_block(address);
}

// Returns the groups of the process's allocator.
Groups& groups();
// Returns the group of the innermost open region that sets a group for such memory, else
// kDefaultGroup, if the settings name it, for memory that is not pinned; 0: none.
GroupNumber group_for(Facade facade);
// Allocates a block in the group that group_for() returns, or in none.
void* allocate_for_group(Facade facade, const DeviceStream& stream, std::size_t size_bytes);
// Puts the block into the group that group_for() returns.
void join_group(Facade facade, const void* address);

// Calls `allocate` with the policy of the open regions, and charges the block to them.
template <class Allocate>
void* allocate_in_region(Facade facade, std::size_t size_bytes, Allocate allocate) {
  if (!any_region()) [[likely]]
    return allocate();
  std::shared_ptr<RegionState> region = charge(facade, size_bytes);
  void* address = nullptr;
  try {
    const PolicyScope policy;
    address = allocate();
    join_group(facade, address);
    keep_charge(region, address, size_bytes);
  } catch (...) {
    give_up(region, address, size_bytes);
    throw;
  }
  return address;
}

}  // namespace uvm::torch_plugin
