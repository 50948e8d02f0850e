// What is current for the calling thread, shared by all stand-ins: the device it has chosen, and
// the stack of contexts of the interface that has one. Each device has one context, its primary
// one, so a context is named by its device. Thread-local state; the primary contexts' activity is
// process-wide and atomic.
#pragma once

#include <cstdint>
#include <vector>

#include <uvmalloc/sim/engine/capture.hpp>
#include <uvmalloc/sim/engine/export.hpp>

namespace uvmsim {

inline constexpr int kNoContext = -1;

class UVMSIM_EXPORT ThreadContext {
 public:
  // The calling thread's.
  static ThreadContext& current();

  // Not used again once the thread has ended, unlike its id.
  std::uint64_t number() const { return number_; }

  // Device of the current context, else the device chosen last, else device 0.
  int device() const;

  // Device of the current context, or kNoContext.
  int context() const { return stack_.empty() ? kNoContext : stack_.back(); }

  // Replaces the top of the stack; kNoContext empties it.
  void set_context(int device);
  void push_context(int device) { stack_.push_back(device); }

  // False where there is none.
  bool pop_context(int* out_device);

  // Makes the device's primary context active and current, as the first call that needs one does.
  void choose_device(int device);

  // Which calls it may make while streams are captured.
  CaptureMode capture_mode = CaptureMode::kGlobal;

 private:
  ThreadContext();

  const std::uint64_t number_;
  int chosen_ = 0;
  std::vector<int> stack_;
};

// Primary contexts count how often they are retained; the implicit use by choose_device counts once
// for good.
class UVMSIM_EXPORT PrimaryContexts {
 public:
  static void activate(int device);
  static bool is_active(int device);
  static void retain(int device);
  static bool release(int device);  // false where it was not retained
  static void reset(int device);
};

}  // namespace uvmsim
