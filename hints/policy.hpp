// How placement is decided: the names that users give (UVMALLOC_POLICY).
#pragma once

#include <optional>
#include <string_view>

namespace uvm {

enum class Policy : unsigned char {
  kAuto,    // advice and prefetch as placement_planner.hpp has it
  kDriver,  // plain unified memory: moves are changes of label, the driver's page faults do the
            // rest
  kOff,     // moves are refused: callers copy, as without uvmalloc
};
std::string_view to_string(Policy policy);

// The policy that planners follow for what this thread does, instead of their own; nullopt: their
// own. Returns what was.
std::optional<Policy> set_thread_policy(std::optional<Policy> policy);

}  // namespace uvm
