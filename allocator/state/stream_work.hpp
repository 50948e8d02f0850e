// Finds out whether streams have finished with freed memory. Events recorded on the streams serve
// as fences. If a stream was destroyed, belongs to another thread or refuses events, waits for the
// whole device. Also distinguishes destroyed streams from later streams with the same handle.
//
// Thread-safe. Call functions that may call the driver without the state lock. forget(), release()
// and is_over() of a stream do not call the driver.
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

  // Adds fences behind the current work of these streams, except streams that have finished.
  // Returns false if a capture forbids recording a fence now, or if a wait for a device fails.
  bool record(const std::vector<DeviceStream>& streams, std::vector<Fence>* fences);
  void release(std::vector<Fence>* fences);
  void release(const Fence& fence) { events_.release(fence.stream.device, fence.event); }

  bool is_over(const Fence& fence) const;
  bool are_over(const std::vector<Fence>& fences) const;

  // These functions wait. If one returns false, or a status that is not ok, the work may still run:
  // the wait failed, or a capture forbids it. On an unusable device, all work counts as over.
  bool wait_for(const Fence& fence);
  bool wait_for_device(int device);
  RuntimeStatus wait_for(const DeviceStream& stream);

  // Call this after the device's context was destroyed. Records that all work of the
  // device is complete, also the work of streams that forget() has removed.
  void note_idle(int device);

  // Call this before a stream is destroyed, because another stream may get its handle. Returns a
  // stand-in that identifies the old stream in records; no call can use it as a stream.
  DeviceStream forget(const DeviceStream& stream);
  // Returns whether a wait for the device has ended since this stream was forgotten.
  bool is_over(const DeviceStream& gone) const;

  // Call these around a capture of the stream, on the thread that begins it. During the capture the
  // driver would refuse a wait for the stream, so wait_for() waits for the work before the capture.
  void begin_capture(const DeviceStream& stream);
  void end_capture(const DeviceStream& stream) noexcept;

  // Orders later work of the stream behind the fence. The calling thread must be able to name the
  // stream. Returns false if the stream is being captured.
  bool order_after(const DeviceStream& stream, const Fence& fence);
  // Orders later work of the calling thread's stream behind the current work of all blocking
  // streams of the device, even per-thread streams that no thread can name any more. Uses the
  // legacy default stream, which waits for all blocking streams. A wait for the device would
  // invalidate captures that uvmalloc was not notified of. Returns false if one of the two streams
  // is being captured.
  bool order_after_blocking_streams(const DeviceStream& stream);

 private:
  RuntimeStatus synchronize(int device) const;
  // Returns whether the calling thread's stream is being captured, or a capture forbids the query.
  bool is_captured(const DeviceStream& stream) const;
  bool synchronize_unless_captured(const DeviceStream& stream, RuntimeStatus* status) const;
  std::optional<Fence> before_capture_of(const DeviceStream& stream);
  std::vector<Fence>::iterator find_capture(const DeviceStream& stream) UVM_REQUIRES(mutex_);
  void note_over(int device, std::uint64_t gone_before);

  const DeviceRuntime& runtime_;
  EventPool& events_;
  CaptureGuard& captures_ = CaptureGuard::of_process();
  Ranked<std::mutex, LockRank::kEvents> mutex_;
  std::vector<Fence> before_captures_ UVM_GUARDED_BY(mutex_);  // before running captures
  std::atomic<std::uint64_t> forgotten_ = 0;                   // number of forgotten streams
  // By device: the work of forgotten streams with lower numbers than this is known to be over.
  std::unique_ptr<std::atomic<std::uint64_t>[]> over_;
};

}  // namespace uvm
