// The captures of streams that the program begins and ends by calls of CUDA, for the process's
// CaptureGuard: no wait of ours for a device falls into one. Captures are noted from the beginning
// of the process on, also before and without an allocator. Thread-safe. Knows no vendor.
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

  // So that use_room(), which follows, needs no memory. std::bad_alloc: there is none.
  void make_room();
  // A capture of the stream has begun. A stream that does not exist: none has.
  void use_room(const DeviceStream& stream) noexcept;
  // The stream's capture has ended, or the stream. Does nothing if it has none.
  void remove(const DeviceStream& stream) noexcept;
  void remove_all_of(int device) noexcept;

 private:
  template <class Ended>
  void remove_where(Ended ended) noexcept;

  std::mutex mutex_;  // guards what follows
  std::vector<DeviceStream> streams_;
  std::size_t room_ = 0;  // promised by make_room()
};

// Whether the calling thread is inside begin_capture(): CUDA's runtime may call its driver by us.
inline thread_local bool is_beginning_capture = false;

// Whether a capture that begins now is to be noted. In a forked child nothing of ours waits.
bool notes_captures() noexcept;

// For the allocator, if there is one: before a capture begins, and when it has ended.
void note_capture_begin(const DeviceStream& stream);
void note_capture_end(const DeviceStream& stream) noexcept;

// Calls begin(), which begins a capture of the stream. A default stream per thread is the calling
// thread's.
template <class Begin>
auto begin_capture(const char* call, int device, StreamHandle stream, Begin begin) noexcept {
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

// Calls end(), which ends the capture of a stream. A call that fails may have ended it too: `ask`
// is the interface's question whether the stream captures.
template <class End, class Result, class Stream, class Status>
Result end_capture(Stream stream, End end, Result (*ask)(Stream, Status*)) noexcept {
  const Result result = end();
  Status status{};  // it captures nothing
  if (result != Result{} && ask != nullptr && ask(stream, &status) != Result{}) status = {};
  if (status == Status{}) OpenCaptures::instance().remove(DeviceStream::named(0, stream));
  return result;
}

}  // namespace uvm::preload
