#include "tools/oversubscription/costly_choices.hpp"

#include <tuple>

namespace uvm::plan {

std::size_t CheapestAbsence::choose(std::span<const Candidate> candidates) const {
  return largest(candidates, [this](const Candidate& each) {
    const bool is_dead = each.live_bytes == 0;
    const std::size_t kernels = each.next_use == kNever ? kNever : each.next_use - each.kernel;
    const std::uint64_t away = unit_ == Unit::kTime ? each.away_ns : kernels;
    const auto bytes = static_cast<double>(each.live_bytes + each.copied_back_bytes + move_bytes_);
    return std::tuple(is_dead, is_dead ? 0.0 : static_cast<double>(away) / bytes,
                      kNever - each.last_use);
  });
}

std::size_t FurthestRested::choose(std::span<const Candidate> candidates) const {
  return largest(candidates, [this](const Candidate& each) {
    const bool is_dead = each.live_bytes == 0;
    return std::tuple(is_dead, each.rested_ns >= least_ns_, is_dead ? kNever : each.next_use,
                      kNever - each.last_use);
  });
}

std::size_t UnchangedFirst::choose(std::span<const Candidate> candidates) const {
  return largest(candidates, [](const Candidate& each) {
    const bool is_dead = each.live_bytes == 0;
    return std::tuple(is_dead, each.copied_back_bytes == 0, is_dead ? kNever : each.next_use,
                      kNever - each.last_use);
  });
}

}  // namespace uvm::plan
