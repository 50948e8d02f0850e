#include "pipelines/packing/storage_packer.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "pipelines/packing/first_fit.hpp"
#include "pipelines/packing/skyline_search.hpp"

namespace uvm {
namespace {

// Steps of one search in the first round, which is enough for most problems. At least half of what
// it takes to place all buffers once. Each round doubles them.
constexpr std::size_t kFirstSteps = 1'000'000;
// How much of all steps goes to searches at the bound itself. A wrong branch ends soonest there.
constexpr double kAtBound = 0.45;
// Heights are halved until they differ by this share of the bound.
constexpr double kGap = 0.002;

}  // namespace

StoragePacker::StoragePacker(const PackProblem& problem, const PackEffort& effort)
    : problem_(problem),
      skylines_(problem),
      corners_(problem),
      effort_(effort),
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

bool StoragePacker::is_good() const {
  return best_.height_bytes <= wanted_bytes_;
}

void StoragePacker::keep(const std::vector<std::int64_t>& offsets) {
  const std::int64_t height = problem_.height_of(offsets);
  if (height < best_.height_bytes) best_ = {offsets, height};
}

// By falling contention, then by falling area, size, lifetime; ties by the number.
std::vector<StoragePacker::Order> StoragePacker::fixed_orders() const {
  std::vector<double> crowd(problem_.size()), area(problem_.size()), length(problem_.size());
  std::vector<double> section_bytes(problem_.section_count());
  for (std::size_t section = 0; section < section_bytes.size(); ++section) {
    for (const std::uint32_t number : problem_.live(section)) {
      section_bytes[section] += static_cast<double>(problem_.buffer(number).size_bytes);
    }
  }
  for (std::size_t number = 0; number < problem_.size(); ++number) {
    const PackBuffer& buffer = problem_.buffer(number);
    length[number] = static_cast<double>(buffer.upper - buffer.lower);
    area[number] = length[number] * static_cast<double>(buffer.size_bytes);
    for (std::size_t section = problem_.first_section(number);
         section < problem_.end_section(number); ++section) {
      crowd[number] = std::max(crowd[number], section_bytes[section]);
    }
  }
  const auto size_of = [this](std::uint32_t number) {
    return static_cast<double>(problem_.buffer(number).size_bytes);
  };
  using Keys = std::array<double, 3>;
  const std::array<std::function<Keys(std::uint32_t)>, 6> keys{
      [&](std::uint32_t n) {
        return Keys{length[n], area[n], crowd[n]};
      },
      [&](std::uint32_t n) {
        return Keys{crowd[n], area[n], length[n]};
      },
      [&](std::uint32_t n) {
        return Keys{crowd[n], length[n], area[n]};
      },
      [&](std::uint32_t n) {
        return Keys{area[n], length[n], crowd[n]};
      },
      [&](std::uint32_t n) {
        return Keys{size_of(n), length[n], crowd[n]};
      },
      [&](std::uint32_t n) {
        return Keys{crowd[n], size_of(n), length[n]};
      },
  };
  std::vector<Order> orders;
  for (const auto& key : keys) {
    Order order(problem_.size());
    std::iota(order.begin(), order.end(), 0U);
    std::stable_sort(order.begin(), order.end(), [&key](std::uint32_t left, std::uint32_t right) {
      return key(left) > key(right);
    });
    orders.push_back(std::move(order));
  }
  return orders;
}

void StoragePacker::try_fixed_orders() {
  for (const Order& order : fixed_orders()) {
    FirstFit fit(problem_);
    fit.place(order);
    keep(fit.offsets());
    if (is_good()) return;
  }
}

void StoragePacker::search_heights() {
  std::size_t live = 0;
  for (std::size_t section = 0; section < problem_.section_count(); ++section) {
    live += problem_.live(section).size();
  }
  const std::size_t first_steps = std::max(kFirstSteps, problem_.size() * live / 2);
  steps_ = effort_.steps;
  const auto kept = static_cast<std::size_t>((1 - kAtBound) * static_cast<double>(steps_));
  std::size_t most_steps = first_steps;
  for (int round = 0; steps_ > kept && !is_good(); ++round, most_steps *= 2) {
    try_height(wanted_bytes_, round, most_steps);
  }
  // Closer and closer to the best height, until one is reached.
  const auto gap = static_cast<std::int64_t>(kGap * static_cast<double>(wanted_bytes_)) + 1;
  most_steps = first_steps;
  double part = 0.5;
  for (int round = 0; steps_ != 0 && !is_good(); ++round) {
    const std::int64_t above = best_.height_bytes - wanted_bytes_;
    const auto lower = static_cast<std::int64_t>(part * static_cast<double>(above));
    const bool is_found =
        try_height(best_.height_bytes - std::max<std::int64_t>(lower, 1), round, most_steps);
    if (is_found) continue;
    part /= 2;
    if (lower > gap) continue;
    part = 0.5;
    most_steps *= 2;
  }
}

// With all searches in turn. Returns whether one has found a packing.
bool StoragePacker::try_height(std::int64_t height_bytes, int round, std::size_t most_steps) {
  const auto finds = [&](auto* search, auto order, double noise, std::size_t most) {
    if (steps_ == 0 || height_bytes < wanted_bytes_) return false;
    const auto offsets = search->fit(height_bytes, order, std::min(most, steps_), noise, random_());
    steps_ -= std::min(steps_, search->steps());
    if (offsets) keep(*offsets);
    // The search has proved that there is none.
    if (!offsets && search->is_exhausted()) wanted_bytes_ = height_bytes + 1;
    return offsets.has_value();
  };
  const double corner_noise = round == 0 ? 0 : 0.5;
  return finds(&skylines_, SkylineOrder::kCrowdLengthArea, 0, 2 * most_steps) ||
         finds(&corners_, CornerOrder::kLength, corner_noise, most_steps) ||
         finds(&corners_, CornerOrder::kSize, corner_noise, most_steps) ||
         finds(&corners_, CornerOrder::kArea, corner_noise, most_steps) ||
         finds(&skylines_, SkylineOrder::kLengthAreaCrowd, round == 0 ? 0 : 0.1, most_steps);
}

}  // namespace uvm
