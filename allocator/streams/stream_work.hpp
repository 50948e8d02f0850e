// Whether streams are through with memory that was given back: events recorded on them, as fences,
// and the whole device for a stream that cannot be asked, since it is gone, another thread's, or
// refuses events. It also tells streams that are gone from those that get their handles later.
//
// Thread-safe, without a lock of its own. What may call the driver is called without the
// allocator's lock; forget(), is_over() of a stream and release() call none.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include <uvmalloc/allocator/heap/block.hpp>
#include <uvmalloc/hints/event_pool.hpp>
#include <uvmalloc/runtime/device_runtime.hpp>

namespace uvm {

class StreamWork {
 public:
  StreamWork(const DeviceRuntime& runtime, EventPool& events);

  // Adds fences behind the work that these streams have so far; none for streams that are through.
  // False: of some it cannot be had now, since a stream is being captured.
  bool record(const std::vector<DeviceStream>& streams, std::vector<Fence>* fences);
  void release(std::vector<Fence>* fences);
  void release(const Fence& fence) { events_.release(fence.stream.device, fence.event); }

  bool is_over(const Fence& fence) const;
  bool are_over(const std::vector<Fence>& fences) const;

  // These wait. On a device that cannot be used any more nothing runs. False: the work may go on.
  bool wait_for(const Fence& fence);
  bool wait_for_device(int device);
  RuntimeStatus wait_for(const DeviceStream& stream) const;  // not ok: the same

  // The stream is about to be destroyed, and its handle may come again. Returns what stands for it
  // from now on, which no call can name.
  DeviceStream forget(const DeviceStream& stream);
  // Whether the device was waited for after this stream was forgotten.
  bool is_over(const DeviceStream& gone) const;

  // Later work of the stream, which the calling thread can name, starts after the fence. False: it
  // cannot be had now, since the stream is being captured.
  bool order_after(const DeviceStream& stream, const Fence& fence);
  // Later work of the calling thread's stream starts after the work so far of all blocking streams
  // of the device, which the legacy default stream waits for: that of per-thread streams which
  // nobody can name any more is among it. Not by waiting for the device, which would invalidate
  // captures that nobody told of. False: it cannot be had now, since one of them is being captured.
  bool order_after_blocking_streams(const DeviceStream& stream);

 private:
  const DeviceRuntime& runtime_;
  EventPool& events_;
  std::atomic<std::uint64_t> forgotten_ = 0;  // streams
  // By device: the work of so many of them is known to be over there.
  std::unique_ptr<std::atomic<std::uint64_t>[]> over_;
};

}  // namespace uvm
