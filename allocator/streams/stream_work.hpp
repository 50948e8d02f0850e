// Whether streams have finished with freed memory. Events recorded on the streams serve as fences.
// If a stream is gone, belongs to another thread or refuses events, the whole device is waited for.
// Also distinguishes streams that are gone from later ones with the same handle.
//
// Thread-safe. Functions that may call the driver are called without the state lock; forget(),
// is_over() of a stream and release() call none.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include <uvmalloc/device_runtime.hpp>
#include "allocator/heap/block.hpp"
#include "hints/event_pool.hpp"
#include "runtime/capture_guard.hpp"
#include "runtime/ranked.hpp"

namespace uvm {

class StreamWork {
 public:
  StreamWork(const DeviceRuntime& runtime, EventPool& events);

  // Adds fences behind the work that these streams have so far; none for streams that have
  // finished. False: some stream is being captured, so its fence cannot be recorded now.
  bool record(const std::vector<DeviceStream>& streams, std::vector<Fence>* fences);
  void release(std::vector<Fence>* fences);
  void release(const Fence& fence) { events_.release(fence.stream.device, fence.event); }

  bool is_over(const Fence& fence) const;
  bool are_over(const std::vector<Fence>& fences) const;

  // These wait. False: the work may go on, or something captures, which a wait for a device would
  // invalidate. On a device that has become unusable nothing runs.
  bool wait_for(const Fence& fence);
  bool wait_for_device(int device);
  RuntimeStatus wait_for(const DeviceStream& stream);  // not ok: the same

  // The work of all streams that were forgotten is over: the device's context is gone.
  void note_idle(int device);

  // The stream is about to be destroyed, and another stream may get its handle. Returns a stand-in
  // for it, which no call can name.
  DeviceStream forget(const DeviceStream& stream);
  // Whether the device was waited for after this stream was forgotten.
  bool is_over(const DeviceStream& gone) const;

  // Around a capture of the stream, by the thread that begins it. A wait for the stream, which the
  // driver would refuse meanwhile, is one for the work before the capture.
  void begin_capture(const DeviceStream& stream);
  void end_capture(const DeviceStream& stream) noexcept;

  // Later work of the stream, which the calling thread can name, starts after the fence. False: the
  // stream is being captured.
  bool order_after(const DeviceStream& stream, const Fence& fence);
  // Later work of the calling thread's stream starts after the work so far of all blocking streams
  // of the device. The legacy default stream waits for those, and per-thread streams that nobody
  // can name any more are among them. Waiting for the device would invalidate captures that we were
  // not notified of. False: one of the streams is being captured.
  bool order_after_blocking_streams(const DeviceStream& stream);

 private:
  RuntimeStatus synchronize(int device) const;
  // The calling thread's stream of that name; also if a capture forbids the question.
  bool is_captured(const DeviceStream& stream) const;
  bool synchronize_unless_captured(const DeviceStream& stream, RuntimeStatus* status) const;
  std::optional<Fence> before_capture_of(const DeviceStream& stream);
  std::vector<Fence>::iterator find_capture(const DeviceStream& stream) UVM_REQUIRES(mutex_);
  void note_over(int device, std::uint64_t gone_before);

  const DeviceRuntime& runtime_;
  EventPool& events_;
  CaptureGuard& captures_ = CaptureGuard::of_process();
  Ranked<std::mutex, LockRank::kEvents> mutex_;
  std::vector<Fence> before_captures_ UVM_GUARDED_BY(mutex_);  // of streams that are captured
  std::atomic<std::uint64_t> forgotten_ = 0;                   // streams
  // By device: the work of so many forgotten streams is known to be over.
  std::unique_ptr<std::atomic<std::uint64_t>[]> over_;
};

}  // namespace uvm
