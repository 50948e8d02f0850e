// The start of every entry point of the stand-ins: counts the call by its exported name, fails if a
// failure was requested, and fails in a forked child, which has no device.
#pragma once

#include <optional>

#include "sim/engine/call_table.hpp"
#include "sim/engine/export.hpp"
#include "sim/engine/machine.hpp"

namespace uvmsim::api {

// The error "not initialized" of both interfaces.
inline constexpr int kNotInitializedError = 3;

// Returns the error with which the entry point must end at once, if any.
inline std::optional<int> refuse(CallRecord& call) {
  if (const auto failure = call.enter()) return failure;
  if (Machine::lost_in_fork()) return kNotInitializedError;
  return std::nullopt;
}

}  // namespace uvmsim::api

// Gets the calling entry point's record, and looks it up only once.
#define UVMSIM_CALL_RECORD \
  static uvmsim::CallRecord& call_record = uvmsim::CallTable::instance().record(__func__)
