// The current device of the calling thread, and the stack of contexts of the driver's interface.
// All stand-ins share them. A context is identified by a number: a primary context by the number of
// its device, other contexts by a number from Contexts. The state is thread-local; the activity of
// primary contexts is process-wide and atomic. There is no destructor, because ending threads and
// processes still make calls.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "sim/engine/capture.hpp"
#include "sim/engine/export.hpp"

namespace uvmsim {

inline constexpr int kNoContext = -1;
inline constexpr int kMostDevices = 64;

// Returns the context in which the calling thread creates objects of the device: the current
// context if it belongs to the device, else the primary context.
int context_for(int device);
// Returns the context that owns the memory and the events that the calling thread creates on the
// device. In a green context, this is the primary context.
int memory_context_for(int device);

struct KernelCall;

class UVMSIM_EXPORT ThreadContext {
 public:
  // Returns the state of the calling thread.
  static ThreadContext& current();

  // Returns the thread's number, which is never reused, unlike the ID of an ended thread.
  std::uint64_t number() const { return number_; }

  // Returns the device of the current context, else the device chosen last, else device 0.
  int device() const;

  // Returns the device of the current context, or kNoContext.
  int context() const { return depth_ == 0 ? kNoContext : context_number() % kMostDevices; }
  // Returns the number of the current context, or kNoContext.
  int context_number() const { return depth_ == 0 ? kNoContext : stack_[depth_ - 1]; }

  // Replaces the top of the stack. For kNoContext, removes the top.
  void set_context(int number);
  // Returns false if the stack is full.
  bool push_context(int number);
  // Returns false if the stack is empty.
  bool pop_context(int* out_number);

  // Makes the device's primary context active and current. The first call that needs a context does
  // the same.
  void choose_device(int device);

  // Decides which calls the thread may make during captures.
  CaptureMode capture_mode = CaptureMode::kGlobal;
  // Whether, in the current call, stream 0 means the thread's own default stream.
  bool has_own_default_stream = false;
  // How the program launched the kernel that the thread is recording; null if unknown.
  const KernelCall* kernel_call = nullptr;

 private:
  ThreadContext();

  const std::uint64_t number_;
  int chosen_ = 0;
  std::size_t depth_ = 0;
  std::array<int, 64> stack_{};
};

// Lives during a call of a program that was compiled for a default stream per thread.
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

// Primary contexts count their retains; choose_device() counts as one retain until a reset. A
// primary context ends, with its memory, streams and events, at its last release or at a reset. A
// reset does not change the count. The next use creates it again.
class UVMSIM_EXPORT PrimaryContexts {
 public:
  static void activate(int device);
  static bool is_active(int device);
  static void retain(int device);
  static bool release(int device);  // returns false if the context was not retained
  // Returns whether the context has ended, which is so only for an inactive primary context.
  static bool has_ended(int context) { return context < kMostDevices && !is_active(context); }
  static void reset(int device);

  // Call this when a context of the device is created. The first call charges the context's memory
  // to the device.
  static void open(int device);
};

}  // namespace uvmsim
