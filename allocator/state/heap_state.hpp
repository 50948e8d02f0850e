// The state that the state lock guards, and a proof that a thread holds this lock (invariant 14).
// The guarded members are accessible only through a LockedHeap. A HeapGuard is a LockedHeap that
// takes the lock. So a function that needs the lock has a parameter `const LockedHeap&`. A function
// that calls the driver or the system has no such parameter, because the lock is never held during
// such a call.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <vector>

#include "allocator/base/biased_mutex.hpp"
#include "allocator/heap/block_pools.hpp"
#include "allocator/spans/span_store.hpp"
#include "allocator/state/budget_reserve.hpp"
#include "allocator/state/machine.hpp"
#include "allocator/state/pressure_rounds.hpp"
#include "allocator/state/private_pool_table.hpp"
#include "allocator/statistics/heap_statistics.hpp"
#include "hints/placement_planner.hpp"
#include "runtime/capture_guard.hpp"
#include "storage/residency_ledger.hpp"

namespace uvm {

enum class BudgetSource {
  kMachine,  // converted memory changes the budget
  kSetting,
  kProgram,  // set_budget()
};

class UVM_CAPABILITY("state lock") HeapState {
 public:
  struct Guarded {
    explicit Guarded(Machine& machine);

    std::size_t budget_bytes;  // of the process; requests beyond it fail
    BudgetSource budget_source;
    // Bytes in use above a budget that the program has lowered. The reserve for small objects comes
    // on top of these bytes.
    std::size_t lowered_below_bytes = 0;
    std::vector<std::size_t> device_limits;  // most bytes of device memory, by device
    std::vector<std::size_t> spill_limits;   // limits of SpillLimit, by device
    // By device: bytes that ReservedAddresses has promised for blocks that are not placed yet.
    std::vector<std::size_t> promised_bytes;
    // By device: the bytes in use outside this allocator; the smallest value of all queries so far.
    std::vector<std::size_t> foreign_bytes;
    ResidencyLedger ledger;
    PlacementPlanner planner;
    SpanStore spans;
    BudgetReserve reserve;
    BlockPools pools;
    PrivatePoolTable private_pools;
    HeapStatistics statistics;
    PressureRounds::Callbacks pressure_callbacks;
    std::size_t orphaned_streams = 0;  // streams with pools that are Pool::is_orphaned
    std::uint64_t lock_cycles = 0;     // times that the state lock was taken; tests limit them

    void set_budget(std::size_t bytes) {
      budget_bytes = bytes;
      statistics.set_budget(bytes);
    }
    // Returns the bytes that count against the budget.
    std::size_t used_bytes() const {
      return std::reduce(promised_bytes.begin(), promised_bytes.end(), spans.touched_bytes());
    }
    std::size_t exceeding_bytes() const {
      const std::size_t used = used_bytes();
      return used - std::min(used, budget_bytes);
    }
    // Returns the bytes that count against the limit of that memory kind and device.
    std::size_t held_bytes(Facade facade, int device) const {
      const std::size_t promised =
          facade == Facade::kDevice ? promised_bytes[static_cast<std::size_t>(device)] : 0;
      return statistics.reserved_bytes(facade, device) + promised;
    }
    // Returns whether the pool's pages may serve other pools.
    bool may_release(const Pool& pool) const {
      const StreamKey& key = pool.key;
      return key.private_pool == 0 || private_pools.users(key.device, key.private_pool) == 0;
    }
    // Displaced blocks of a stream join this pool.
    Pool& page_granular_pool(StreamIndex stream) {
      return pools.at(pool_of(stream, PoolClass::kPageGranular));
    }
    // Returns the live block that holds `address`, or nullptr if no live block does.
    Block* live_block(const void* address) const {
      Block* block = pools.directory().find(address);
      return block != nullptr && block->now() == BlockState::kLive ? block : nullptr;
    }
    // Moves the count of the block's pages from one pool to another.
    void transfer_pages(const Block& block, PoolIndex from, PoolIndex to) {
      statistics.pages_removed(pools.at(from), block.address(), block.size_bytes());
      statistics.pages_added(pools.at(to), block.address(), block.size_bytes());
    }
  };

  explicit HeapState(Machine& machine) : guarded_(machine) {}
  HeapState(const HeapState&) = delete;
  HeapState& operator=(const HeapState&) = delete;

  // ---- without the lock: these functions read atomics, or members that never change

  // Returns the block that starts at `address`, or nullptr. Always finds the start of a live block.
  Block* block_at(const void* address) const UVM_NOT_ANALYSED {
    return guarded_.pools.directory().block_at(address);
  }
  bool is_ours(const void* address) const UVM_NOT_ANALYSED {
    return guarded_.pools.directory().is_ours(address);
  }
  bool has_open_private_pools() const UVM_NOT_ANALYSED { return guarded_.private_pools.any_open(); }
  // Returns whether a stream is being captured. If so, do not wait, query, or give memory to the
  // driver.
  static bool is_capturing() { return CaptureGuard::of_process().any(); }
  bool has_placement_news() const UVM_NOT_ANALYSED { return guarded_.planner.has_news(); }
  // Returns the index of the counters for that memory kind and device.
  std::size_t counter_index(Facade facade, int device) const UVM_NOT_ANALYSED {
    return guarded_.statistics.counter_index(facade, device);
  }
  // Plans hints for a new span that no other thread knows yet.
  HintPlan plan_span(Span* span) UVM_NOT_ANALYSED {
    return guarded_.planner.plan_span(span->base, span->size_bytes, span->facade, span->device,
                                      &span->placement);
  }

  StateLock& lock_for_fork() { return lock_; }

 private:
  friend class LockedHeap;
  friend class HeapGuard;

  mutable StateLock lock_;
  mutable Guarded guarded_ UVM_GUARDED_BY(this);
};

// Proves that this thread holds the state lock.
class LockedHeap {
 public:
  HeapState::Guarded* operator->() const { return &state_.guarded_; }
  // Proves to clang's analysis, and checks in debug builds, that the lock of `state` is held.
  void proves([[maybe_unused]] const HeapState& state) const UVM_ASSERT_HELD(state) {
    assert(&state == &state_);
  }
  LockedHeap(const LockedHeap&) = delete;
  LockedHeap& operator=(const LockedHeap&) = delete;

 protected:
  explicit LockedHeap(const HeapState& state) : state_(state) {}
  ~LockedHeap() = default;

  const HeapState& state_;
};

// Holds the state lock until the end of its scope.
class UVM_SCOPED_CAPABILITY HeapGuard : public LockedHeap {
 public:
  [[gnu::always_inline]] explicit HeapGuard(const HeapState& state)
      UVM_ACQUIRE(state) UVM_NOT_ANALYSED : LockedHeap(state) {
    state_.lock_.lock();
    ++state_.guarded_.lock_cycles;
  }
  [[gnu::always_inline]] ~HeapGuard() UVM_RELEASE() UVM_NOT_ANALYSED { state_.lock_.unlock(); }
};

// For a thread that holds the lock in another way (around a fork), or that runs alone.
class HeldHeap : public LockedHeap {
 public:
  explicit HeldHeap(const HeapState& state) UVM_ASSERT_HELD(state) : LockedHeap(state) {}
};

}  // namespace uvm
