#include <uvmalloc/storage/storage_packer.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include <uvmalloc/storage/first_fit.hpp>
#include <uvmalloc/storage/skyline_search.hpp>

namespace uvm {
namespace {

// Heights over the bound that are searched for, and the nodes of one search. At the bound itself a
// wrong branch ends soonest; the looser heights are for problems that have no packing there.
constexpr std::array kFirstRatios{1.0, 1.2, 1.1, 1.05, 1.02};
constexpr std::size_t kShare = 50'000;
constexpr std::array kOrders{SkylineOrder::kLengthAreaCrowd, SkylineOrder::kCrowdAreaLength,
                             SkylineOrder::kCrowdLengthArea};

}  // namespace

StoragePacker::StoragePacker(const PackProblem& problem, const PackEffort& effort)
    : problem_(problem),
      search_(problem),
      effort_(effort),
      random_(effort.seed),
      wanted_bytes_(static_cast<std::int64_t>(
          std::ceil(static_cast<double>(problem.lower_bound_bytes()) * effort.good_enough))) {
  best_.height_bytes = std::numeric_limits<std::int64_t>::max();
}

Packing StoragePacker::pack() {
  if (problem_.size() == 0) return {};
  try_fixed_orders();
  if (!is_good()) search_skylines();
  if (!is_good()) search_orders();
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
    fit.place(order, 0, std::numeric_limits<std::int64_t>::max());
    keep(fit.offsets());
    if (is_good()) return;
  }
}

void StoragePacker::search_skylines() {
  nodes_ = effort_.nodes;
  for (const double ratio : kFirstRatios) {
    if (try_height(ratio, 0, kShare)) return;
  }
  for (std::size_t share = 2 * kShare; nodes_ != 0; share += kShare) {
    for (const double noise : {0.3, 0.1}) {
      if (try_height(1.0, noise, kShare)) return;
    }
    if (try_height(1.0, 0, share) || try_height(1.02, 0.3, kShare)) return;
  }
}

// In all orders. Returns whether the search is over.
bool StoragePacker::try_height(double ratio, double noise, std::size_t most_nodes) {
  const auto bound = static_cast<double>(problem_.lower_bound_bytes());
  const std::int64_t height = std::max(wanted_bytes_, static_cast<std::int64_t>(ratio * bound));
  for (const SkylineOrder order : kOrders) {
    if (height >= best_.height_bytes) return false;
    const std::size_t most = std::min(most_nodes, nodes_);
    nodes_ -= most;
    const auto offsets = search_.fit(height, order, most, noise, random_());
    if (offsets) keep(*offsets);
    if (is_good() || nodes_ == 0) return true;
  }
  return false;
}

void StoragePacker::search_orders() {
  FirstFit fit(problem_);
  Order order(problem_.size());
  std::iota(order.begin(), order.end(), 0U);
  // A packing is the first fit of its buffers by offset.
  std::stable_sort(order.begin(), order.end(), [this](std::uint32_t left, std::uint32_t right) {
    return best_.offsets[left] < best_.offsets[right];
  });
  constexpr auto kNoLimit = std::numeric_limits<std::int64_t>::max();
  std::int64_t height = fit.place(order, 0, kNoLimit);
  keep(fit.offsets());
  std::vector<std::size_t> high;
  for (std::size_t placements = effort_.placements; placements != 0 && !is_good();) {
    high.clear();
    for (std::size_t at = 0; at < order.size(); ++at) {
      if (fit.offsets()[order[at]] + problem_.buffer(order[at]).size_bytes >= height) {
        high.push_back(at);
      }
    }
    const std::size_t from = high[random_() % high.size()];
    // Before a buffer that is in its way, or anywhere before it.
    std::size_t to = from == 0 ? 0 : random_() % from;
    Order changed = order;
    std::rotate(changed.begin() + static_cast<std::ptrdiff_t>(to),
                changed.begin() + static_cast<std::ptrdiff_t>(from),
                changed.begin() + static_cast<std::ptrdiff_t>(from) + 1);
    if (random_() % 4 == 0 && order.size() > 1) {
      const std::size_t left = random_() % order.size();
      const std::size_t right = random_() % order.size();
      std::swap(changed[left], changed[right]);
      to = std::min({to, left, right});
    }
    placements -= std::min(placements, order.size() - to);
    // A little worse is accepted now and then, less and less.
    const auto worse = static_cast<std::int64_t>(static_cast<double>(problem_.lower_bound_bytes()) *
                                                 0.01 * static_cast<double>(placements) /
                                                 static_cast<double>(effort_.placements));
    const std::int64_t most = height + (random_() % 4 == 0 ? worse : 0);
    const std::int64_t changed_height = fit.place(changed, to, most);
    if (changed_height <= most) {
      order = std::move(changed);
      height = changed_height;
      keep(fit.offsets());
    } else {
      fit.place(order, to, kNoLimit);
      placements -= std::min(placements, order.size() - to);
    }
  }
}

}  // namespace uvm
