// Runs a StoragePlan (TVM, "Symbolic shape runtime", Implementation 3): makes one allocation for
// all storages, and views into it. bind() takes the variables' values and evaluates only the sizes
// that depend on a changed value. If the values were bound before, the views come from a cache.
//
// If a variable exceeds its bound, some storages may not fit. The policy then decides: an error, an
// arena that grows 1.5-fold (as the RFC's discussion proposes, after Folly's vector), or a separate
// allocation for each storage that does not fit. No storage extends beyond its memory.
//
// Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "pipelines/plans/arena_memory.hpp"
#include "pipelines/plans/storage_plan.hpp"
#include "pipelines/plans/view_cache.hpp"

namespace uvm {

enum class BeyondBound : std::uint8_t {
  kRefuse,    // throws PlanError, which names the variable, its value and its range
  kGrow,      // raises the bound by half, or to the value if that is more, and packs again
  kFallBack,  // makes a separate allocation for each storage that does not fit
};

struct StorageView {
  char* address = nullptr;
  std::size_t size_bytes = 0;
  friend bool operator==(const StorageView&, const StorageView&) = default;
};

class StorageArena {
 public:
  static constexpr std::size_t kCachedViews = 64;

  // `memory` must outlive the arena. The arena allocates no memory before the first bind().
  StorageArena(StoragePlan plan, ArenaMemory& memory, BeyondBound policy,
               const PackEffort& effort = {}, std::size_t cached_views = kCachedViews);
  ~StorageArena();
  StorageArena(const StorageArena&) = delete;
  StorageArena& operator=(const StorageArena&) = delete;

  // Returns the views of all storages, in the plan's order. `values` has a value for each variable
  // of the plan; the values of derived variables are ignored. The views and their contents are
  // valid until the next bind(), which frees separate allocations. After PlanError, ExpressionError
  // or std::bad_alloc the arena accepts another bind().
  std::span<const StorageView> bind(std::span<const std::int64_t> values);

  const StoragePlan& plan() const { return plan_; }  // kGrow replaces the plan

  // ---- counts since the start
  std::uint64_t evaluations() const { return evaluations_; }  // of size expressions
  std::uint64_t growths() const { return growths_; }
  std::uint64_t fall_backs() const { return fall_backs_; }  // number of separate allocations
  std::uint64_t view_hits() const { return cache_.hits(); }
  std::uint64_t view_misses() const { return cache_.misses(); }

 private:
  struct Apart {
    void* address;
    std::size_t size_bytes;
  };
  struct Views {
    std::vector<std::int64_t> values;  // values of all variables, derived ones included
    std::vector<std::int64_t> sizes;
    std::vector<StorageView> views;
  };

  void provide_arena();
  void give_arena_back() noexcept;
  void grow(std::span<const std::int64_t> values);
  Views make_views(std::span<const std::int64_t> values);
  void evaluate(Views* made);
  void place(Views* made);
  void free_apart() noexcept;

  StoragePlan plan_;
  ArenaMemory& memory_;
  BeyondBound policy_;
  PackEffort effort_;
  ViewCache<Views> cache_;
  std::vector<std::size_t> given_;  // variables that the program sets
  std::vector<std::int64_t> key_;   // the values of given_
  Views* current_ = nullptr;        // points into the cache, or to beyond_
  Views beyond_;                    // views with separate allocations, which are not cached
  std::vector<Apart> apart_;        // the separate allocations of beyond_
  char* arena_ = nullptr;
  std::size_t arena_bytes_ = 0;
  std::uint64_t evaluations_ = 0;
  std::uint64_t growths_ = 0;
  std::uint64_t fall_backs_ = 0;
};

}  // namespace uvm
