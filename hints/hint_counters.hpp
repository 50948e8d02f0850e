// Counts how many hints were sent, failed, or were skipped, and why.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "hints/hint.hpp"

namespace uvm {

enum class SkipReason : std::uint8_t {
  kAlreadyThere,  // by the ledger the pages are there, or the advice is already set
  kNoCredit,      // the device's soft budget has no room
  kPolicy,        // the current policy sends no hints
  kCoherent,      // the device shares the host's memory or page tables, so no page would move
  kSharedPages,   // not a whole page or segment: the hint would affect other blocks
  kPingPong,      // the segment moves back and forth, and its advice serves both places
};
inline constexpr std::size_t kSkipReasons = 6;
const char* to_string(SkipReason reason);

class HintCounters {
 public:
  using Counter = std::atomic<std::uint64_t>;
  struct Kind {
    Counter sent{0};
    Counter bytes{0};
    Counter failed{0};
    std::array<Counter, kSkipReasons> skipped{};
  };

  Kind& of(HintKind kind) { return kinds_[static_cast<std::size_t>(kind)]; }
  const Kind& of(HintKind kind) const { return kinds_[static_cast<std::size_t>(kind)]; }
  void count(HintKind kind, std::size_t size_bytes, bool is_sent) {
    Kind& counted = of(kind);
    if (is_sent) {
      counted.sent.fetch_add(1, std::memory_order_relaxed);
      counted.bytes.fetch_add(size_bytes, std::memory_order_relaxed);
    } else {
      counted.failed.fetch_add(1, std::memory_order_relaxed);
    }
  }
  void skip(HintKind kind, SkipReason reason) {
    of(kind).skipped[static_cast<std::size_t>(reason)].fetch_add(1, std::memory_order_relaxed);
  }

 private:
  std::array<Kind, kHintKinds> kinds_;
};

}  // namespace uvm
