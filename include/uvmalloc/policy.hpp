// The policies for the placement of memory, and their names in UVMALLOC_POLICY.
#pragma once

#include <array>
#include <optional>
#include <string_view>
#include <utility>

namespace uvm {

// The values of uvmalloc_policy (uvmalloc.h), and kOff.
enum class Policy : unsigned char {
  kAuto,     // advice and prefetches by the rules of placement_planner.hpp
  kDriver,   // plain unified memory: no advice, no prefetches; pages migrate by page faults
  kLru,      // same as kAuto; if memory is short, evicts the least recently used page
  kPlanned,  // same as kAuto; plans even if the program repeats no step
  kOff,      // moves are refused: callers copy, as without uvmalloc
};
inline constexpr std::array<std::pair<std::string_view, Policy>, 5> kPolicies{
    {{"auto", Policy::kAuto},
     {"planned", Policy::kPlanned},
     {"lru", Policy::kLru},
     {"driver", Policy::kDriver},
     {"off", Policy::kOff}}};
std::string_view to_string(Policy policy);

// Whether the policy sends advice and prefetches.
constexpr bool sends_hints(Policy policy) {
  return policy != Policy::kDriver && policy != Policy::kOff;
}

// Sets the policy for this thread's calls; nullopt: the planner's policy. Returns the previous
// value.
std::optional<Policy> set_thread_policy(std::optional<Policy> policy);

}  // namespace uvm
