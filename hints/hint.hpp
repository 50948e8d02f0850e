// A hint: advice, a prefetch or a discard for one range, decided by the placement planner and sent
// by the hint sender. Deciding is pure and happens under the allocator's lock; sending calls the
// driver and never does.
#pragma once

#include <cstddef>
#include <vector>

#include <uvmalloc/runtime/device_runtime.hpp>
#include <uvmalloc/runtime/place.hpp>

namespace uvm {

enum class HintKind : unsigned char { kAdvise, kPrefetch, kDiscard };
inline constexpr std::size_t kHintKinds = 3;

struct Hint {
  HintKind kind = HintKind::kAdvise;
  Advice advice = Advice::kSetPreferredLocation;  // for kAdvise
  Place place;  // the location advised or the prefetch's destination
  void* address = nullptr;
  std::size_t size_bytes = 0;

  friend bool operator==(const Hint&, const Hint&) = default;
};

// In the order to be sent.
using HintPlan = std::vector<Hint>;

}  // namespace uvm
