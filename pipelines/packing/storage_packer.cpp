#include "pipelines/packing/storage_packer.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "pipelines/packing/first_fit.hpp"

namespace uvm {
namespace {

// The step limit of the first searches, enough for most problems. It is raised for large problems,
// so that a search can place all buffers at least once.
constexpr std::size_t kFirstSteps = 1'000'000;
// After this many failed searches (twice as many at the bound) the steps of a search double. Many
// short searches find more than a few long searches, because a wrong first choice wastes all steps
// of its search.
constexpr std::size_t kSearchesPerLength = 8;
// The fraction of all steps for searches at the bound itself, where a wrong branch fails soonest.
constexpr double kAtBound = 0.45;
// A failed search halves the distance to the best height, down to this fraction of the bound.
constexpr double kGap = 0.002;
// The first search in each order uses exact keys; later ones change keys by up to this fraction.
constexpr double kNoise = 0.5;
constexpr std::array kOrders{CornerOrder::kLength, CornerOrder::kSize, CornerOrder::kArea,
                             CornerOrder::kLowest};

}  // namespace

StoragePacker::StoragePacker(const PackProblem& problem, const PackEffort& effort)
    : problem_(problem),
      corners_(problem),
      steps_(effort.steps),
      random_(effort.seed),
      wanted_bytes_(static_cast<std::int64_t>(
          std::ceil(static_cast<double>(problem.lower_bound_bytes()) * effort.good_enough))) {
  best_.height_bytes = std::numeric_limits<std::int64_t>::max();
}

Packing StoragePacker::pack() {
  if (problem_.size() == 0) return {};
  try_fixed_orders();
  if (!is_good()) search_heights();
  return best_;
}

void StoragePacker::keep(std::span<const std::int64_t> offsets) {
  const std::int64_t height = problem_.height_of(offsets);
  if (height < best_.height_bytes) best_ = {{offsets.begin(), offsets.end()}, height};
}

// Each order sorts by three keys, largest first. Equal buffers keep the order of their numbers.
void StoragePacker::try_fixed_orders() {
  using Keys = std::vector<double>;  // by buffer
  Keys size(problem_.size()), length(size), area(size), crowd(size);
  for (std::size_t section = 0; section < problem_.section_count(); ++section) {
    double live_bytes = 0;
    for (const std::uint32_t number : problem_.live(section)) {
      live_bytes += static_cast<double>(problem_.buffer(number).size_bytes);
    }
    for (const std::uint32_t number : problem_.live(section)) {
      crowd[number] = std::max(crowd[number], live_bytes);
    }
  }
  for (std::size_t number = 0; number < problem_.size(); ++number) {
    const PackBuffer& buffer = problem_.buffer(number);
    size[number] = static_cast<double>(buffer.size_bytes);
    length[number] = static_cast<double>(buffer.upper - buffer.lower);
    area[number] = length[number] * size[number];
  }
  const std::array<std::array<const Keys*, 3>, 6> orders{{{&length, &area, &crowd},
                                                          {&crowd, &area, &length},
                                                          {&crowd, &length, &area},
                                                          {&area, &length, &crowd},
                                                          {&size, &length, &crowd},
                                                          {&crowd, &size, &length}}};
  std::vector<std::uint32_t> order(problem_.size());
  for (const auto& keys : orders) {
    std::iota(order.begin(), order.end(), 0U);
    std::stable_sort(order.begin(), order.end(), [&keys](std::uint32_t left, std::uint32_t right) {
      const auto* const differs = std::find_if(
          keys.begin(), keys.end(), [&](const Keys* key) { return (*key)[left] != (*key)[right]; });
      return differs != keys.end() && (**differs)[left] > (**differs)[right];
    });
    keep(first_fit(problem_, order));
    if (is_good()) return;
  }
}

void StoragePacker::search_heights() {
  std::size_t live = 0;
  for (std::size_t section = 0; section < problem_.section_count(); ++section) {
    live += problem_.live(section).size();
  }
  const std::size_t first_steps = std::max(kFirstSteps, problem_.size() * live);
  const auto kept = static_cast<std::size_t>((1 - kAtBound) * static_cast<double>(steps_));
  const std::int64_t bound = wanted_bytes_;
  std::size_t most_steps = first_steps;
  for (std::size_t search = 1; steps_ > kept && !is_good() && wanted_bytes_ == bound; ++search) {
    try_height(bound, search - 1, most_steps);
    if (search % (2 * kSearchesPerLength) == 0) most_steps *= 2;
  }
  // Try heights between the bound and the best one: lower after a success, higher after a failure.
  const auto gap = static_cast<std::int64_t>(kGap * static_cast<double>(wanted_bytes_)) + 1;
  most_steps = first_steps;
  std::size_t failures = 0;
  double part = 0.5;
  for (std::size_t search = 0; steps_ != 0 && !is_good(); ++search) {
    const std::int64_t above = best_.height_bytes - wanted_bytes_;
    const auto lower = static_cast<std::int64_t>(part * static_cast<double>(above));
    const bool is_found =
        try_height(best_.height_bytes - std::max<std::int64_t>(lower, 1), search, most_steps);
    part = is_found ? std::min(0.5, 2 * part) : lower > gap ? part / 2 : 0.5;
    if (is_found || ++failures % kSearchesPerLength != 0) continue;
    if (most_steps < steps_) most_steps *= 2;
  }
}

// Returns whether the search has found a packing.
bool StoragePacker::try_height(std::int64_t height_bytes, std::size_t search,
                               std::size_t most_steps) {
  const auto offsets =
      corners_.fit(height_bytes, kOrders[search % kOrders.size()], std::min(most_steps, steps_),
                   search < kOrders.size() ? 0 : kNoise, static_cast<std::uint32_t>(random_()));
  steps_ -= std::min(steps_, corners_.steps());
  if (offsets) keep(*offsets);
  // The search has proved that no packing has this height.
  if (!offsets && corners_.is_exhausted()) wanted_bytes_ = height_bytes + 1;
  return offsets.has_value();
}

}  // namespace uvm
