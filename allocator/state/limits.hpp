// The limits that can refuse memory: the budget of the process, the limit of a device, and the
// driver. The functions read the heap's state and change nothing.
#pragma once

#include <cstddef>
#include <cstdint>

#include <uvmalloc/device_runtime.hpp>
#include "allocator/small/small_arenas.hpp"
#include "allocator/state/heap_state.hpp"
#include "allocator/state/request.hpp"

namespace uvm {

enum class RefusedBy : std::uint8_t { kNobody, kBudget, kDeviceLimit, kSpillLimit, kDriver };

struct Refusal {
  RefusedBy by = RefusedBy::kNobody;
  RuntimeStatus status;  // shown in traces and messages

  bool ok() const { return by == RefusedBy::kNobody; }
  static Refusal of_budget() {
    return {RefusedBy::kBudget, {RuntimeError::kOutOfMemory, 0, "the budget is used up", "budget"}};
  }
  static Refusal of_device_limit() {
    return {RefusedBy::kDeviceLimit,
            {RuntimeError::kOutOfMemory, 0, "the device's limit is reached", "device limit"}};
  }
  static Refusal of_spill() {
    return {RefusedBy::kSpillLimit,
            {RuntimeError::kOutOfMemory, 0, "the device is full, and the spill limit is reached",
             "spill limit"}};
  }
  static Refusal of_driver(const RuntimeStatus& status) {
    return status.ok() ? Refusal{} : Refusal{RefusedBy::kDriver, status};
  }
};

namespace limits {

// Returns the most bytes that all pools of that memory kind and device together may hold.
std::size_t limit_of(const LockedHeap& heap, const StreamKey& key);

// Checks whether pools of `key` may get `pool_bytes` of pages; `touched_bytes` of these would be
// touched for the first time. The budget may be exceeded by `beyond_budget_bytes`.
Refusal check(const LockedHeap& heap, const StreamKey& key, std::size_t touched_bytes,
              std::size_t pool_bytes, std::size_t beyond_budget_bytes = 0);

// Returns the bytes by which small objects in pools of `key` may exceed the budget (BudgetReserve).
std::size_t beyond_budget_bytes(const LockedHeap& heap, const StreamKey& key,
                                SmallArenas::Growth most);

// Returns whether the request is too large even if all memory were freed. If a device holds more
// than its lowered limit, the request may reuse those bytes.
bool exceeds(const LockedHeap& heap, const Request& request);

// Returns whether the device may be too full for the request's pages, so that they would be on the
// host.
bool would_leave_device(const LockedHeap& heap, const Request& request);

// Returns whether pages are scarce, so that placement should conserve them.
bool are_pages_short(const LockedHeap& heap, const StreamKey& key);

}  // namespace limits
}  // namespace uvm
