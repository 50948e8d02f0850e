// Places the storages of a program in one arena (TVM, "Symbolic shape runtime"). Their sizes are
// infix expressions of named variables and constants (Implementation 2). StoragePlan computes the
// most bytes of each storage from the variables' ranges (Implementation 1) and packs the storages.
// StorageArena is the runtime (Implementation 3).
//
// A storage is live from step `first_use` until before step `end_use`. Storages that are live at
// the same step do not overlap. A storage that is part of another storage has no own memory. It is
// at the start of the other storage, which stays live as long as its parts.
//
// Immutable after StoragePlan::make(); may be used by several threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pipelines/packing/storage_packer.hpp"
#include "pipelines/plans/size_expression.hpp"

namespace uvm {

// A variable: set by the program within [lower, upper], or derived from others by `expression`.
struct PlanVariable {
  std::string name;
  std::int64_t lower = 0;
  std::int64_t upper = 0;
  std::string expression;  // empty: the program sets the variable

  bool is_derived() const { return !expression.empty(); }
  friend bool operator==(const PlanVariable&, const PlanVariable&) = default;
};

struct PlanStorage {
  std::string id;
  std::string size;  // an expression, in bytes
  std::int64_t first_use = 0;
  std::int64_t end_use = 0;
  std::string part_of;  // id of another storage; empty: this storage has memory of its own

  friend bool operator==(const PlanStorage&, const PlanStorage&) = default;
};

struct PlanDescription {
  std::vector<PlanVariable> variables;
  std::vector<PlanStorage> storages;
  std::int64_t alignment_bytes = 512;  // of every storage; a power of two

  friend bool operator==(const PlanDescription&, const PlanDescription&) = default;
};

// The description or plan is wrong. The message names the variable or the storage.
struct PlanError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

class StoragePlan {
 public:
  struct Place {
    std::int64_t offset = 0;
    std::int64_t most_bytes = 0;  // aligned; of an owner: enough for its parts
    friend bool operator==(const Place&, const Place&) = default;
  };

  // Computes the bounds and packs the storages. Throws PlanError or ExpressionError for:
  // * a name that is empty or used twice, an unknown variable or id, or an empty range;
  // * a cycle of derived variables or of parts;
  // * a size that may overflow or divide by zero, or that is always negative;
  // * a storage that is live at no step, or an alignment that is not a power of two.
  static StoragePlan make(PlanDescription description, const PackEffort& effort = {});
  // Makes a plan from the places that an earlier make() found, in the order of the storages. Throws
  // PlanError if the places do not match the description.
  static StoragePlan with_places(PlanDescription description, std::vector<Place> places);

  const PlanDescription& description() const { return description_; }
  const std::vector<Place>& places() const { return places_; }
  std::int64_t arena_bytes() const { return arena_bytes_; }
  // Returns the most bytes that are live at one step if all sizes are at their bounds. No plan has
  // a smaller arena.
  std::int64_t lower_bound_bytes() const { return lower_bound_bytes_; }
  std::size_t storage_number(std::string_view id) const;     // throws PlanError if unknown
  std::size_t variable_number(std::string_view name) const;  // throws PlanError if unknown

  // Returns the storage that owns the memory: `storage`, unless it is part of another storage.
  std::size_t owner(std::size_t storage) const { return owners_[storage]; }
  // Returns the variables that determine the size, directly or through derived variables,
  // ascending. Only variables that the program sets are listed.
  const std::vector<std::size_t>& dependencies(std::size_t storage) const {
    return storage_dependencies_[storage];
  }

  // Fills in the derived variables. `values` has a value for each variable. Throws PlanError if a
  // value that the program sets is below its range, or is above its range and `may_exceed` is
  // false. The error names the variable, the value and the range.
  void derive(std::span<std::int64_t> values, bool may_exceed = false) const;
  // Returns the size of a storage. If the size is negative, throws PlanError, which names the
  // storage, its size and the values.
  std::int64_t size_bytes(std::size_t storage, std::span<const std::int64_t> values) const;

 private:
  StoragePlan() = default;
  void compile();
  void order_derived();
  void find_owners();
  void bound_sizes();
  PackProblem problem() const;
  void finish(std::vector<Place> places);
  std::string values_text(std::size_t storage, std::span<const std::int64_t> values) const;

  PlanDescription description_;
  std::vector<std::string> names_;
  std::vector<std::optional<SizeExpression>> derivations_;  // by variable
  std::vector<std::size_t> derivation_order_;
  std::vector<SizeExpression> sizes_;
  std::vector<std::vector<std::size_t>> variable_dependencies_, storage_dependencies_;
  std::vector<std::size_t> owners_;
  std::vector<std::int64_t> most_bytes_;  // by storage, aligned; of an owner: enough for its parts
  std::vector<std::size_t> owning_;       // storages with memory of their own
  std::vector<Place> places_;
  std::int64_t arena_bytes_ = 0;
  std::int64_t lower_bound_bytes_ = 0;
};

}  // namespace uvm
