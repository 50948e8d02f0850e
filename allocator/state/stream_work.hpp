// Knows whether streams have finished with freed memory. Events recorded on the streams serve as
// fences. If a stream is gone, belongs to another thread or refuses events, the whole device is
// waited for. Also distinguishes streams that are gone from later ones with the same handle.
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

  // Adds fences behind the present work of these streams; none for streams that have finished.
  // False if a capture forbids recording a fence, or waiting for a device, now.
  bool record(const std::vector<DeviceStream>& streams, std::vector<Fence>* fences);
  void release(std::vector<Fence>* fences);
  void release(const Fence& fence) { events_.release(fence.stream.device, fence.event); }

  bool is_over(const Fence& fence) const;
  bool are_over(const std::vector<Fence>& fences) const;

  // These wait. False, or not ok, if the work may still run: the wait failed, or a capture forbids
  // waiting for a device. On a device that has become unusable the work is over.
  bool wait_for(const Fence& fence);
  bool wait_for_device(int device);
  RuntimeStatus wait_for(const DeviceStream& stream);

  // Called when the device's context is gone: the work of all streams forgotten so far is over.
  void note_idle(int device);

  // Called before a stream is destroyed, because another stream may get its handle. Returns a
  // stand-in for the stream, which no call can name.
  DeviceStream forget(const DeviceStream& stream);
  // Whether the device was waited for after this stream was forgotten.
  bool is_over(const DeviceStream& gone) const;

  // Called around a capture of the stream, by the thread that begins it. Meanwhile the driver would
  // refuse a wait for the stream, so wait_for() waits for the work before the capture.
  void begin_capture(const DeviceStream& stream);
  void end_capture(const DeviceStream& stream) noexcept;

  // Orders later work of the stream, which the calling thread can name, behind the fence. False if
  // the stream is being captured.
  bool order_after(const DeviceStream& stream, const Fence& fence);
  // Orders later work of the calling thread's stream behind the present work of all blocking
  // streams of the device, by way of the legacy default stream, which waits for them. Among them
  // are per-thread streams that no thread can name any more. A wait for the device would invalidate
  // captures that uvmalloc was not notified of. False if one of the two streams is being
  // captured.
  bool order_after_blocking_streams(const DeviceStream& stream);

 private:
  RuntimeStatus synchronize(int device) const;
  // Whether the calling thread's stream of that name is captured, or a capture forbids the query.
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
  // By device: how many forgotten streams, in the order of forget(), are known to be over.
  std::unique_ptr<std::atomic<std::uint64_t>[]> over_;
};

}  // namespace uvm
