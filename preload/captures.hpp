// Reports the stream captures that the program begins and ends to the process's CaptureGuard,
// because uvmalloc must not wait for a device during a capture. Records captures from process
// start, even if no allocator exists. Thread-safe; independent of the vendor.
#pragma once

#include <cstddef>
#include <mutex>
#include <vector>

#include <uvmalloc/device_runtime.hpp>
#include "preload/interpose.hpp"
#include "runtime/capture_guard.hpp"

namespace uvm::preload {

class OpenCaptures {
 public:
  static OpenCaptures& instance();

  // Reserves memory, so that the use_room() that follows cannot fail. Throws std::bad_alloc.
  void make_room();
  // Uses the reserved memory to record a capture of the stream. For DeviceStream{}, only gives the
  // reserved memory up.
  void use_room(const DeviceStream& stream) noexcept;
  // Records that the stream or its capture has ended. Does nothing if the stream has no capture.
  void remove(const DeviceStream& stream) noexcept;
  void remove_all_of(int device) noexcept;

 private:
  template <class Ended>
  void remove_where(Ended ended) noexcept;

  std::mutex mutex_;  // guards the members below
  std::vector<DeviceStream> streams_;
  std::size_t room_ = 0;  // entries reserved by make_room()
};

// True while this thread is inside begin_capture_of(). The runtime's call may reach the driver
// through uvmalloc's function, which must not record the capture again.
inline thread_local bool is_beginning_capture = false;

// Returns whether to record captures. A forked child never waits for a device, so it records none.
bool notes_captures() noexcept;

// Notify the allocator, if one exists, before a capture begins and after it has ended.
void note_capture_begin(const DeviceStream& stream);
void note_capture_end(const DeviceStream& stream) noexcept;

// Calls begin(), which begins a capture of the stream, and records the capture. A per-thread
// default stream is recorded as the stream of the calling thread.
template <class Begin>
auto begin_capture_of(const char* call, int device, StreamHandle stream, Begin begin) noexcept {
  bool is_noted = false;
  beside(call, [&] {
    if (is_beginning_capture || !notes_captures()) return;
    OpenCaptures::instance().make_room();
    is_noted = true;
  });
  if (!is_noted) return begin();
  is_beginning_capture = true;
  CaptureGuard::Beginning beginning(CaptureGuard::of_process());
  const DeviceStream captured = DeviceStream::named(device, stream);
  beside(call, [&] { note_capture_begin(captured); });
  const auto result = begin();
  is_beginning_capture = false;
  const bool has_begun = result == decltype(result){};
  if (has_begun) {
    beginning.begun();
  } else {
    note_capture_end(captured);
  }
  OpenCaptures::instance().use_room(has_begun ? captured : DeviceStream{});
  return result;
}

}  // namespace uvm::preload
