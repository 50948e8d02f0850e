// The ways to decide on placement, by the names of UVMALLOC_POLICY.
#pragma once

#include <optional>
#include <string_view>

namespace uvm {

enum class Policy : unsigned char {
  kAuto,     // advice and prefetches by the rules of placement_planner.hpp
  kDriver,   // plain unified memory: moves are changes of label, the driver's page faults do the
             // rest
  kOff,      // moves are refused: callers copy, as without uvmalloc
  kLru,      // as kAuto; where memory is short, the page leaves that was used longest ago
  kPlanned,  // as kAuto, and never gives up planning
};
std::string_view to_string(Policy policy);

// Whether advice and prefetches are sent.
constexpr bool sends_hints(Policy policy) {
  return policy != Policy::kDriver && policy != Policy::kOff;
}

// Sets the policy that planners follow for calls of this thread; nullopt: their own. Returns the
// previous one.
std::optional<Policy> set_thread_policy(std::optional<Policy> policy);

}  // namespace uvm
