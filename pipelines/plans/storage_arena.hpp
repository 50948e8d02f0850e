// Runs a StoragePlan (TVM, "Symbolic shape runtime", Implementation 3): one allocation for all
// storages, and views of it. bind() is told the variables' values. Only sizes that use a variable
// which has changed are evaluated, and views come from a cache if the values were bound before.
//
// A variable above its bound makes sizes that do not fit. Then the policy decides: an error, an
// arena that grows by 1.5 (as the RFC's discussion proposes, after Folly's vector), or an
// allocation apart for each storage that does not fit. A storage never reaches beyond its memory.
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
  kRefuse,    // PlanError: names the variable, its value and its range
  kGrow,      // the variable's bound becomes 1.5 times as high, or the value; all is packed anew
  kFallBack,  // storages that do not fit get memory of their own
};

struct StorageView {
  char* address = nullptr;
  std::size_t size_bytes = 0;
  friend bool operator==(const StorageView&, const StorageView&) = default;
};

class StorageArena {
 public:
  static constexpr std::size_t kCachedViews = 64;

  // `memory` must outlive the arena. Takes no memory before the first bind().
  StorageArena(StoragePlan plan, ArenaMemory& memory, BeyondBound policy,
               const PackEffort& effort = {}, std::size_t cached_views = kCachedViews);
  ~StorageArena();
  StorageArena(const StorageArena&) = delete;
  StorageArena& operator=(const StorageArena&) = delete;

  // The views of all storages, in the plan's order. `values` has a value for each variable of the
  // plan; those of derived ones are not read. The views and what they hold are valid until the next
  // bind(), which frees the memory apart from the arena, if they have any. PlanError,
  // ExpressionError and std::bad_alloc leave the arena ready for another bind().
  std::span<const StorageView> bind(std::span<const std::int64_t> values);

  const StoragePlan& plan() const { return plan_; }  // the one in force: growing replaces it

  // ---- since the start
  std::uint64_t evaluations() const { return evaluations_; }  // of size expressions
  std::uint64_t growths() const { return growths_; }
  std::uint64_t fall_backs() const { return fall_backs_; }  // allocations apart
  std::uint64_t view_hits() const { return cache_.hits(); }
  std::uint64_t view_misses() const { return cache_.misses(); }

 private:
  struct Apart {
    void* address;
    std::size_t size_bytes;
  };
  struct Views {
    std::vector<std::int64_t> values;  // with derived ones
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
  std::vector<std::int64_t> key_;   // their values
  Views* current_ = nullptr;        // in the cache, or beyond_
  Views beyond_;                    // of one run beyond the bounds; the cache has none of these
  std::vector<Apart> apart_;        // the memory of beyond_
  char* arena_ = nullptr;
  std::size_t arena_bytes_ = 0;
  std::uint64_t evaluations_ = 0;
  std::uint64_t growths_ = 0;
  std::uint64_t fall_backs_ = 0;
};

}  // namespace uvm
