#include "hints/oversubscription/victim_choice.hpp"

#include <tuple>

namespace uvm::plan {

std::size_t FurthestUse::choose(std::span<const Candidate> candidates) const {
  return largest(candidates, [](const Candidate& each) {
    const bool is_dead = each.live_bytes == 0;
    return std::tuple(is_dead, is_dead ? kNever : each.next_use, kNever - each.last_use);
  });
}

std::size_t LeastRecentUse::choose(std::span<const Candidate> candidates) const {
  return largest(candidates, [](const Candidate& each) {
    return std::tuple(each.live_bytes == 0, kNever - each.last_use);
  });
}

}  // namespace uvm::plan
