// What became of every hint that could have been: sent, skipped and why, failed.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include <uvmalloc/hints/hint.hpp>

namespace uvm {

enum class SkipReason : std::uint8_t {
  kAlreadyThere,  // the ledger says the pages are where they are wanted, or the advice is in force
  kNoCredit,      // the device has no room for it under its soft budget
  kPolicy,        // the policy in force sends none
  kCoherent,      // hardware coherent or integrated: nothing would move
  kSharedPages,   // less than whole pages: it would hit neighbours
  kPingPong,      // the segment goes back and forth: it stays advised for both sides
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
  void skip(HintKind kind, SkipReason reason) {
    of(kind).skipped[static_cast<std::size_t>(reason)].fetch_add(1, std::memory_order_relaxed);
  }

 private:
  std::array<Kind, kHintKinds> kinds_;
};

}  // namespace uvm
