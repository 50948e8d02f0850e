// The ways to decide on placement, by the names of UVMALLOC_POLICY.
#pragma once

#include <optional>
#include <string_view>

namespace uvm {

enum class Policy : unsigned char {
  kAuto,    // advice and prefetches by the rules of placement_planner.hpp
  kDriver,  // plain unified memory: moves are changes of label, the driver's page faults do the
            // rest
  kOff,     // moves are refused: callers copy, as without uvmalloc
};
std::string_view to_string(Policy policy);

// Sets the policy that planners follow for calls of this thread; nullopt: their own. Returns the
// previous one.
std::optional<Policy> set_thread_policy(std::optional<Policy> policy);

}  // namespace uvm
