#include "pipelines/plans/storage_arena.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace uvm {

StorageArena::StorageArena(StoragePlan plan, ArenaMemory& memory, BeyondBound policy,
                           const PackEffort& effort, std::size_t cached_views)
    : plan_(std::move(plan)),
      memory_(memory),
      policy_(policy),
      effort_(effort),
      cache_(cached_views) {
  for (std::size_t number = 0; number < plan_.description().variables.size(); ++number) {
    if (!plan_.description().variables[number].is_derived()) given_.push_back(number);
  }
  key_.resize(given_.size());
}

StorageArena::~StorageArena() {
  free_apart();
  give_arena_back();
}

std::span<const StorageView> StorageArena::bind(std::span<const std::int64_t> values) {
  if (values.size() != plan_.description().variables.size()) {
    throw PlanError(fmt::format("there are {} values for {} variables", values.size(),
                                plan_.description().variables.size()));
  }
  for (std::size_t place = 0; place < given_.size(); ++place) key_[place] = values[given_[place]];
  free_apart();
  if (Views* known = cache_.find(key_)) {
    current_ = known;
    return known->views;
  }
  if (policy_ == BeyondBound::kGrow) grow(values);
  provide_arena();
  Views made;
  try {
    made = make_views(values);
  } catch (...) {
    free_apart();
    throw;
  }
  if (apart_.empty()) {
    current_ = cache_.insert(key_, std::move(made), [this](const Views& old) {
      if (current_ == &old) current_ = nullptr;
    });
  } else {
    beyond_ = std::move(made);
    current_ = &beyond_;
  }
  return current_->views;
}

void StorageArena::provide_arena() {
  const auto size_bytes = static_cast<std::size_t>(plan_.arena_bytes());
  if (arena_ != nullptr || size_bytes == 0) return;
  arena_ = static_cast<char*>(
      memory_.allocate(size_bytes, static_cast<std::size_t>(plan_.description().alignment_bytes)));
  arena_bytes_ = size_bytes;
}

// Also drops all views, because they point into the arena.
void StorageArena::give_arena_back() noexcept {
  cache_.clear();
  current_ = nullptr;
  if (arena_ != nullptr) memory_.free(arena_, arena_bytes_);
  arena_ = nullptr;
}

void StorageArena::free_apart() noexcept {
  for (const Apart& apart : apart_) memory_.free(apart.address, apart.size_bytes);
  apart_.clear();
}

void StorageArena::grow(std::span<const std::int64_t> values) {
  PlanDescription description = plan_.description();
  bool has_grown = false;
  for (const std::size_t number : given_) {
    PlanVariable& variable = description.variables[number];
    if (values[number] <= variable.upper) continue;
    has_grown = true;
    const std::int64_t half = variable.upper > 0 ? variable.upper / 2 : 0;
    std::int64_t higher = 0;
    if (__builtin_add_overflow(variable.upper, half, &higher)) higher = values[number];
    variable.upper = std::max(values[number], higher);
  }
  if (!has_grown) return;
  StoragePlan grown = StoragePlan::make(std::move(description), effort_);
  // No run uses the old arena now, so it can be freed before the new one is allocated.
  give_arena_back();
  plan_ = std::move(grown);
  ++growths_;
}

StorageArena::Views StorageArena::make_views(std::span<const std::int64_t> values) {
  Views made;
  made.values.assign(values.begin(), values.end());
  plan_.derive(made.values, policy_ == BeyondBound::kFallBack);
  evaluate(&made);
  place(&made);
  return made;
}

// Evaluates sizes. Copies the sizes that depend on no changed variable from the last views.
void StorageArena::evaluate(Views* made) {
  const std::size_t count = plan_.places().size();
  std::vector<bool> has_changed(made->values.size(), current_ == nullptr);
  if (current_ != nullptr) {
    for (const std::size_t number : given_) {
      has_changed[number] = made->values[number] != current_->values[number];
    }
    made->sizes = current_->sizes;
  }
  made->sizes.resize(count);
  for (std::size_t storage = 0; storage < count; ++storage) {
    const auto& used = plan_.dependencies(storage);
    if (current_ != nullptr && std::none_of(used.begin(), used.end(), [&](std::size_t variable) {
          return has_changed[variable];
        })) {
      continue;
    }
    ++evaluations_;
    made->sizes[storage] = plan_.size_bytes(storage, made->values);
  }
}

void StorageArena::place(Views* made) {
  const std::size_t count = plan_.places().size();
  std::vector<std::int64_t> needed(count);  // by owner: the bytes for all its parts
  for (std::size_t storage = 0; storage < count; ++storage) {
    std::int64_t& of_owner = needed[plan_.owner(storage)];
    of_owner = std::max(of_owner, made->sizes[storage]);
  }
  std::vector<char*> addresses(count);
  for (std::size_t storage = 0; storage < count; ++storage) {
    if (plan_.owner(storage) != storage) continue;
    const StoragePlan::Place& place = plan_.places()[storage];
    if (needed[storage] <= place.most_bytes) {
      addresses[storage] = arena_ == nullptr ? nullptr : arena_ + place.offset;
      continue;
    }
    const auto size_bytes = static_cast<std::size_t>(needed[storage]);
    const auto alignment = static_cast<std::size_t>(plan_.description().alignment_bytes);
    apart_.reserve(apart_.size() + 1);
    apart_.push_back({memory_.allocate(size_bytes, alignment), size_bytes});
    addresses[storage] = static_cast<char*>(apart_.back().address);
    ++fall_backs_;
  }
  for (std::size_t storage = 0; storage < count; ++storage) {
    made->views.push_back(
        {addresses[plan_.owner(storage)], static_cast<std::size_t>(made->sizes[storage])});
  }
}

}  // namespace uvm
