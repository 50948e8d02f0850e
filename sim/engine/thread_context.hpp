// The current device of the calling thread, and the stack of contexts of the driver's interface.
// All stand-ins share them. A context is a number. A primary context has its device's number, and
// all work of the device happens there. A context that a program has made has the device's number
// plus a multiple of kMostDevices. Thread-local state; the primary contexts' activity is
// process-wide and atomic. It has no destructor: threads that end, and processes, make calls until
// the last.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "sim/engine/capture.hpp"
#include "sim/engine/export.hpp"

namespace uvmsim {

inline constexpr int kNoContext = -1;
inline constexpr int kMostDevices = 64;

// The context in which the calling thread makes things of the device: its current one if that is of
// the device, else the primary one.
int context_for(int device);

struct KernelCall;

class UVMSIM_EXPORT ThreadContext {
 public:
  // The calling thread's.
  static ThreadContext& current();

  // Not used again once the thread has ended, unlike its id.
  std::uint64_t number() const { return number_; }

  // Device of the current context, else the device chosen last, else device 0.
  int device() const;

  // Device of the current context, or kNoContext.
  int context() const { return depth_ == 0 ? kNoContext : context_number() % kMostDevices; }
  // Its number, or kNoContext.
  int context_number() const { return depth_ == 0 ? kNoContext : stack_[depth_ - 1]; }

  // Replaces the top of the stack; kNoContext takes it away.
  void set_context(int number);
  // False where the stack has no room.
  bool push_context(int number);
  // False where there is none.
  bool pop_context(int* out_number);

  // Makes the device's primary context active and current, as the first call that needs one does.
  void choose_device(int device);

  // Which calls it may make while streams are captured.
  CaptureMode capture_mode = CaptureMode::kGlobal;
  // Whether stream 0 is the thread's own default stream in the call that it makes.
  bool has_own_default_stream = false;
  // How the program launched the kernel that the thread records now; null: that is not known.
  const KernelCall* kernel_call = nullptr;

 private:
  ThreadContext();

  const std::uint64_t number_;
  int chosen_ = 0;
  std::size_t depth_ = 0;
  std::array<int, 64> stack_{};
};

// Around a call of a program that was compiled for a default stream per thread.
class PerThreadDefaultStream {
 public:
  PerThreadDefaultStream() : before_(ThreadContext::current().has_own_default_stream) {
    ThreadContext::current().has_own_default_stream = true;
  }
  ~PerThreadDefaultStream() { ThreadContext::current().has_own_default_stream = before_; }
  PerThreadDefaultStream(const PerThreadDefaultStream&) = delete;
  PerThreadDefaultStream& operator=(const PerThreadDefaultStream&) = delete;

 private:
  const bool before_;
};

// Primary contexts count how often they are retained; the implicit use by choose_device counts
// once, until a reset. A primary context ends with its last use, or by a reset, which leaves the
// count as it is. Its memory, streams and events end then. The next use makes it anew.
class UVMSIM_EXPORT PrimaryContexts {
 public:
  static void activate(int device);
  static bool is_active(int device);
  static void retain(int device);
  static bool release(int device);  // false where it was not retained
  // Whether calls in the context of that number may be made: its primary context is active.
  static bool has_ended(int context) { return context < kMostDevices && !is_active(context); }
  static void reset(int device);

  // A context of the device is made: the first one takes its part of the device's memory.
  static void open(int device);
};

}  // namespace uvmsim
