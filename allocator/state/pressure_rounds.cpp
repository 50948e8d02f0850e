#include "allocator/state/pressure_rounds.hpp"

#include <algorithm>
#include <utility>

namespace uvm {
namespace {

// A callback that is running on this thread, linked to the one that encloses it.
class RunningCallback {
 public:
  explicit RunningCallback(const void* owner) : owner_(owner), outer_(innermost_) {
    innermost_ = this;
  }
  ~RunningCallback() { innermost_ = outer_; }
  RunningCallback(const RunningCallback&) = delete;
  RunningCallback& operator=(const RunningCallback&) = delete;

  static bool is_inside(const void* owner) {
    const RunningCallback* call = innermost_;
    while (call != nullptr && call->owner_ != owner) call = call->outer_;
    return call != nullptr;
  }

 private:
  static constinit thread_local const RunningCallback* innermost_;

  const void* const owner_;
  const RunningCallback* const outer_;
};
constinit thread_local const RunningCallback* RunningCallback::innermost_ = nullptr;

}  // namespace

PressureRounds::PressureRounds(const void* owner, Callbacks callbacks, FreedBytes freed_bytes,
                               std::size_t most_bytes)
    : owner_(owner),
      callbacks_(RunningCallback::is_inside(owner) ? Callbacks() : std::move(callbacks)),
      freed_bytes_(std::move(freed_bytes)),
      left_bytes_(most_bytes) {}

bool PressureRounds::next() {
  while (fruitless_ < callbacks_.size() && left_bytes_ != 0) {
    const PressureRounds::Callback& callback = *callbacks_[position_];
    position_ = (position_ + 1) % callbacks_.size();
    const std::int64_t before = freed_bytes_();
    bool has_freed = false;
    {
      const RunningCallback running(owner_);
      has_freed = callback();
    }
    const auto freed = static_cast<std::size_t>(std::max<std::int64_t>(freed_bytes_() - before, 0));
    left_bytes_ -= std::min(freed, left_bytes_);
    fruitless_ = has_freed && freed != 0 ? 0 : fruitless_ + 1;
    if (has_freed) return true;
  }
  return false;
}

}  // namespace uvm
