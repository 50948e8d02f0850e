// A hint: advice, a prefetch or a discard for one range. The placement planner decides hints under
// the state lock and calls no driver. The hint sender sends hints without the lock.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <initializer_list>

#include <uvmalloc/device_runtime.hpp>
#include <uvmalloc/place.hpp>

namespace uvm {

enum class HintKind : unsigned char { kAdvise, kPrefetch, kDiscard };
inline constexpr std::size_t kHintKinds = 3;

struct Hint {
  HintKind kind = HintKind::kAdvise;
  Advice advice = Advice::kSetPreferredLocation;  // for kAdvise
  Place place;  // the location that is advised, or the destination of the prefetch
  void* address = nullptr;
  std::size_t size_bytes = 0;
  bool is_copied = false;  // for kPrefetch: the contents of the pages are copied

  friend bool operator==(const Hint&, const Hint&) = default;
};

// Hints in the order of sending. A plan has room for all hints of one decision, so planning
// allocates nothing and cannot fail after the planner has recorded its decision.
class HintPlan {
 public:
  static constexpr std::size_t kMostHints = 3;  // two pieces of advice and a prefetch

  HintPlan() = default;
  HintPlan(std::initializer_list<Hint> hints) {
    for (const Hint& hint : hints) push_back(hint);
  }

  // The plan must contain fewer than kMostHints hints.
  void push_back(const Hint& hint) { hints_[size_++] = hint; }

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  const Hint& operator[](std::size_t index) const { return hints_[index]; }
  const Hint* begin() const { return hints_.data(); }
  const Hint* end() const { return hints_.data() + size_; }

  friend bool operator==(const HintPlan& left, const HintPlan& right) {
    return std::equal(left.begin(), left.end(), right.begin(), right.end());
  }

 private:
  std::array<Hint, kMostHints> hints_;
  std::size_t size_ = 0;
};

}  // namespace uvm
