// Judges whether the host's memory is short, from successive readings. Not thread-safe.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

#include "allocator/base/machine_memory.hpp"
#include "groups/policy.hpp"

namespace uvm {

struct MemoryReading {
  HostMemoryFigures memory;
  std::chrono::microseconds stalled{0};  // since some moment before all readings
};
using ReadMemory = std::function<MemoryReading()>;

inline MemoryReading read_host_memory() {
  return {host_memory_figures(), memory_stall()};
}

enum class Shortage : std::uint8_t { kNone, kNear, kShort };

class MemoryWatch {
 public:
  explicit MemoryWatch(ReadMemory read) : read_(std::move(read)) {}

  // `now` must not be less than in the call before.
  Shortage look(std::chrono::nanoseconds now) {
    const MemoryReading reading = read_();
    Shortage shortage = Shortage::kNone;
    const auto [total, available] = reading.memory;
    if (available < total / policy::kShortParts) {
      shortage = Shortage::kShort;
    } else if (available < total / policy::kShortParts * 2) {
      shortage = Shortage::kNear;
    }
    if (last_ && now > last_at_) {
      const auto stalled = reading.stalled - last_->stalled;
      if (stalled >= (now - last_at_) / policy::kStalledParts) {
        shortage = Shortage::kShort;
      } else if (stalled >= (now - last_at_) / (2 * policy::kStalledParts)) {
        shortage = std::max(shortage, Shortage::kNear);
      }
    }
    last_ = reading;
    last_at_ = now;
    return shortage;
  }

 private:
  const ReadMemory read_;
  std::optional<MemoryReading> last_;
  std::chrono::nanoseconds last_at_{0};
};

}  // namespace uvm
