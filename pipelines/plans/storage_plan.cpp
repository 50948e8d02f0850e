#include "pipelines/plans/storage_plan.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace uvm {
namespace {

// Returns all numbers, each after the numbers in next(number). If there is a cycle, throws a
// PlanError that lists it.
template <class Next, class Name>
std::vector<std::size_t> order_without_circles(std::size_t count, Next next, Name name,
                                               std::string_view what) {
  enum class Mark : std::uint8_t { kNew, kOpen, kDone };
  std::vector<Mark> marks(count, Mark::kNew);
  std::vector<std::size_t> order;
  struct Visit {
    std::size_t number;
    std::size_t at;
  };
  for (std::size_t start = 0; start < count; ++start) {
    std::vector<Visit> path;
    if (marks[start] == Mark::kNew) path.push_back({start, 0});
    while (!path.empty()) {
      marks[path.back().number] = Mark::kOpen;
      const std::vector<std::size_t>& others = next(path.back().number);
      if (path.back().at == others.size()) {
        marks[path.back().number] = Mark::kDone;
        order.push_back(path.back().number);
        path.pop_back();
        continue;
      }
      const std::size_t other = others[path.back().at++];
      if (marks[other] == Mark::kDone) continue;
      if (marks[other] == Mark::kNew) {
        path.push_back({other, 0});
        continue;
      }
      std::vector<std::string> names;
      for (const Visit& visit : path) {
        if (!names.empty() || visit.number == other) names.push_back(name(visit.number));
      }
      names.push_back(name(other));
      throw PlanError(fmt::format("{} go round in a circle: {}", what, fmt::join(names, " -> ")));
    }
  }
  return order;
}

template <class Items, class Name>
void refuse_twice(const Items& items, Name name, std::string_view what) {
  std::set<std::string_view> seen;
  for (const auto& item : items) {
    if (name(item).empty()) throw PlanError(fmt::format("a {} has no name", what));
    if (!seen.insert(name(item)).second) {
      throw PlanError(fmt::format("the {} '{}' is there twice", what, name(item)));
    }
  }
}

void merge_sorted(std::vector<std::size_t>* into, const std::vector<std::size_t>& others) {
  std::vector<std::size_t> merged;
  std::set_union(into->begin(), into->end(), others.begin(), others.end(),
                 std::back_inserter(merged));
  *into = std::move(merged);
}

}  // namespace

StoragePlan StoragePlan::make(PlanDescription description, const PackEffort& effort) {
  StoragePlan plan;
  plan.description_ = std::move(description);
  plan.compile();
  const PackProblem problem = plan.problem();
  const Packing packing = StoragePacker(problem, effort).pack();
  std::vector<Place> places(plan.owners_.size());
  for (std::size_t place = 0; place < plan.owning_.size(); ++place) {
    places[plan.owning_[place]] = {packing.offsets[place] * plan.description_.alignment_bytes,
                                   plan.most_bytes_[plan.owning_[place]]};
  }
  for (std::size_t storage = 0; storage < places.size(); ++storage) {
    if (plan.owners_[storage] == storage) continue;
    places[storage] = {places[plan.owners_[storage]].offset, plan.most_bytes_[storage]};
  }
  plan.finish(std::move(places));
  return plan;
}

StoragePlan StoragePlan::with_places(PlanDescription description, std::vector<Place> places) {
  StoragePlan plan;
  plan.description_ = std::move(description);
  plan.compile();
  plan.finish(std::move(places));
  return plan;
}

std::size_t StoragePlan::storage_number(std::string_view id) const {
  for (std::size_t number = 0; number < description_.storages.size(); ++number) {
    if (description_.storages[number].id == id) return number;
  }
  throw PlanError(fmt::format("the storage '{}' is unknown", id));
}

std::size_t StoragePlan::variable_number(std::string_view name) const {
  const auto found = std::find(names_.begin(), names_.end(), name);
  if (found != names_.end()) return static_cast<std::size_t>(found - names_.begin());
  throw PlanError(
      fmt::format("the variable '{}' is unknown; known: {}", name, fmt::join(names_, ", ")));
}

// ---- compiling the description

void StoragePlan::compile() {
  if (description_.alignment_bytes < 1 || description_.alignment_bytes > (1 << 30) ||
      !std::has_single_bit(static_cast<std::uint64_t>(description_.alignment_bytes))) {
    throw PlanError(fmt::format("the alignment is {}; accepted: a power of two up to 2^30",
                                description_.alignment_bytes));
  }
  refuse_twice(
      description_.variables, [](const auto& one) -> const auto& { return one.name; }, "variable");
  refuse_twice(
      description_.storages, [](const auto& one) -> const auto& { return one.id; }, "storage");
  for (const PlanVariable& variable : description_.variables) {
    if (!SizeExpression::is_variable_name(variable.name)) {
      throw PlanError(fmt::format(
          "no expression can use the variable '{}'; accepted: a name of letters, digits and '_' "
          "that begins with no digit, and that is not min or max",
          variable.name));
    }
    names_.push_back(variable.name);
  }
  order_derived();
  for (const PlanStorage& storage : description_.storages) {
    if (storage.first_use >= storage.end_use) {
      throw PlanError(
          fmt::format("the storage '{}' is live from step {} to before step {}, which is "
                      "not a step",
                      storage.id, storage.first_use, storage.end_use));
    }
    sizes_.push_back(SizeExpression::parse(storage.size, names_));
    std::vector<std::size_t> dependencies;
    for (const std::size_t variable : sizes_.back().variables()) {
      merge_sorted(&dependencies, variable_dependencies_[variable]);
    }
    storage_dependencies_.push_back(std::move(dependencies));
  }
  find_owners();
  bound_sizes();
}

// Orders derived variables after the variables that they use.
void StoragePlan::order_derived() {
  const auto& variables = description_.variables;
  for (const PlanVariable& variable : variables) {
    derivations_.emplace_back();
    if (variable.is_derived()) {
      derivations_.back() = SizeExpression::parse(variable.expression, names_);
    } else if (variable.lower > variable.upper) {
      throw PlanError(
          fmt::format("the variable '{}' has the range {} to {}, which contains no number",
                      variable.name, variable.lower, variable.upper));
    }
  }
  static const std::vector<std::size_t> kNone;
  const auto uses = [this](std::size_t number) -> const std::vector<std::size_t>& {
    return derivations_[number] ? derivations_[number]->variables() : kNone;
  };
  const std::vector<std::size_t> order = order_without_circles(
      variables.size(), uses, [this](std::size_t number) { return names_[number]; },
      "the derived variables");
  variable_dependencies_.resize(variables.size());
  for (const std::size_t number : order) {
    if (!variables[number].is_derived()) {
      variable_dependencies_[number] = {number};
      continue;
    }
    derivation_order_.push_back(number);
    for (const std::size_t other : uses(number)) {
      merge_sorted(&variable_dependencies_[number], variable_dependencies_[other]);
    }
  }
}

void StoragePlan::find_owners() {
  const auto& storages = description_.storages;
  std::vector<std::vector<std::size_t>> next(storages.size());
  for (std::size_t number = 0; number < storages.size(); ++number) {
    if (storages[number].part_of.empty()) continue;
    try {
      next[number] = {storage_number(storages[number].part_of)};
    } catch (const PlanError&) {
      throw PlanError(fmt::format("the storage '{}' is part of the unknown storage '{}'",
                                  storages[number].id, storages[number].part_of));
    }
  }
  order_without_circles(
      storages.size(),
      [&next](std::size_t number) -> const std::vector<std::size_t>& { return next[number]; },
      [&storages](std::size_t number) { return storages[number].id; }, "parts of storages");
  for (std::size_t number = 0; number < storages.size(); ++number) {
    std::size_t owner = number;
    while (!next[owner].empty()) owner = next[owner].front();
    owners_.push_back(owner);
    if (owner == number) owning_.push_back(number);
  }
}

void StoragePlan::bound_sizes() {
  std::vector<SizeRange> ranges;
  for (const PlanVariable& variable : description_.variables) {
    ranges.push_back({variable.lower, variable.upper});
  }
  for (const std::size_t number : derivation_order_) {
    ranges[number] = derivations_[number]->range(ranges);
  }
  most_bytes_.resize(sizes_.size());
  const std::int64_t alignment = description_.alignment_bytes;
  for (std::size_t number = 0; number < sizes_.size(); ++number) {
    const std::int64_t most = sizes_[number].range(ranges).upper;
    const std::string& id = description_.storages[number].id;
    if (most < 0) {
      throw PlanError(fmt::format("the storage '{}' has the size '{}', which is at most {}", id,
                                  sizes_[number].text(), most));
    }
    if (most > PackProblem::kMostBytes) {
      throw PlanError(fmt::format("the storage '{}' has the size '{}', which can be {} bytes", id,
                                  sizes_[number].text(), most));
    }
    most_bytes_[number] = (most + alignment - 1) / alignment * alignment;
  }
  for (std::size_t number = 0; number < sizes_.size(); ++number) {
    std::int64_t& of_owner = most_bytes_[owners_[number]];
    of_owner = std::max(of_owner, most_bytes_[number]);
  }
}

// Sizes are in units of the alignment. An owner is live while any of its parts is live.
PackProblem StoragePlan::problem() const {
  const auto& storages = description_.storages;
  std::vector<PackBuffer> of_all(storages.size());
  for (std::size_t number = 0; number < storages.size(); ++number) {
    PackBuffer& buffer = of_all[owners_[number]];
    const bool is_first = buffer.lower == buffer.upper;
    buffer.lower =
        is_first ? storages[number].first_use : std::min(buffer.lower, storages[number].first_use);
    buffer.upper =
        is_first ? storages[number].end_use : std::max(buffer.upper, storages[number].end_use);
    buffer.size_bytes = most_bytes_[owners_[number]] / description_.alignment_bytes;
  }
  std::vector<PackBuffer> buffers;
  for (const std::size_t number : owning_) buffers.push_back(of_all[number]);
  return PackProblem(std::move(buffers));
}

void StoragePlan::finish(std::vector<Place> places) {
  const auto& storages = description_.storages;
  if (places.size() != storages.size()) {
    throw PlanError(
        fmt::format("there are {} places for {} storages", places.size(), storages.size()));
  }
  const std::int64_t alignment = description_.alignment_bytes;
  std::vector<std::int64_t> offsets;
  for (std::size_t number = 0; number < places.size(); ++number) {
    const Place& place = places[number];
    if (place.offset < 0 || place.offset > PackProblem::kMostBytes ||
        place.offset % alignment != 0) {
      throw PlanError(fmt::format("the storage '{}' lies at {}; accepted: a multiple of {} from 0",
                                  storages[number].id, place.offset, alignment));
    }
    if (place.most_bytes != most_bytes_[number]) {
      throw PlanError(fmt::format("the storage '{}' has {} bytes; its size needs {}",
                                  storages[number].id, place.most_bytes, most_bytes_[number]));
    }
    if (owners_[number] == number) {
      offsets.push_back(place.offset / alignment);
    } else if (place.offset != places[owners_[number]].offset) {
      throw PlanError(fmt::format("the storage '{}' does not lie where '{}' does",
                                  storages[number].id, storages[owners_[number]].id));
    }
  }
  const PackProblem packed = problem();
  const std::string fault = packed.fault_of(offsets);
  if (!fault.empty()) throw PlanError(fmt::format("the places overlap: {}", fault));
  places_ = std::move(places);
  arena_bytes_ = packed.height_of(offsets) * alignment;
  lower_bound_bytes_ = packed.lower_bound_bytes() * alignment;
}

// ---- sizes of one run

void StoragePlan::derive(std::span<std::int64_t> values, bool may_exceed) const {
  for (std::size_t number = 0; number < names_.size(); ++number) {
    const PlanVariable& variable = description_.variables[number];
    if (variable.is_derived()) continue;
    if (values[number] < variable.lower || (values[number] > variable.upper && !may_exceed)) {
      throw PlanError(fmt::format("the variable '{}' is {}; accepted: {} to {}", variable.name,
                                  values[number], variable.lower, variable.upper));
    }
  }
  for (const std::size_t number : derivation_order_) {
    values[number] = derivations_[number]->evaluate(values);
  }
}

std::int64_t StoragePlan::size_bytes(std::size_t storage,
                                     std::span<const std::int64_t> values) const {
  const std::int64_t size_bytes = sizes_[storage].evaluate(values);
  if (size_bytes >= 0) return size_bytes;
  throw PlanError(fmt::format("the storage '{}' has the size '{}', which is {} for {}",
                              description_.storages[storage].id, sizes_[storage].text(), size_bytes,
                              values_text(storage, values)));
}

std::string StoragePlan::values_text(std::size_t storage,
                                     std::span<const std::int64_t> values) const {
  std::vector<std::string> texts;
  for (const std::size_t variable : sizes_[storage].variables()) {
    texts.push_back(fmt::format("{} = {}", names_[variable], values[variable]));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

}  // namespace uvm
