// Notifies the allocator of the streams of a program: which streams use a block, and when a stream
// is captured or destroyed. Thread-safe. Functions throw std::out_of_range if the device does not
// exist, unless they are noexcept or say otherwise.
#pragma once

#include <vector>

#include <uvmalloc/allocator.hpp>

namespace uvm {

class Streams {
 public:
  explicit Streams(Engine& engine) : engine_(&engine) {}

  // Same as the allocator's record_use(), for all streams of the device on which memory was
  // requested.
  bool record_use_of_all(const void* address, int device);

  // Returns the streams that work on the live block at `address`, the block's own stream included;
  // empty if there is no such block.
  std::vector<DeviceStream> uses_of(const void* address) const;

  // Waits until no recorded stream works on the block. Call this before the host writes to it in
  // place. Throws std::runtime_error if that is impossible, for example for a captured stream.
  void wait_for_uses(const void* address);

  // Call this before the stream is destroyed; the stream must get no more work. Another stream may
  // later get the same handle, and its work is not ordered after the work of this stream. The next
  // new stream takes over the memory cached for this stream, and waits for this stream's current
  // work.
  //
  // If the stream is being captured, no stream can wait for its current work. Then the allocator
  // waits for the device before it reuses that memory, or blocks of other streams that this stream
  // worked on. If private pools hold memory of the stream, the function waits for the device at
  // once; if that is impossible, the memory stays unused until those pools are released.
  void forget(int device, StreamHandle stream);

  // Call begin_capture() before the call that begins a capture of the stream, on the same thread.
  // Call end_capture() after the capture has ended, or if it did not begin. The allocator can then
  // wait for the stream's work without invalidating the capture.
  void begin_capture(const DeviceStream& stream);
  void end_capture(const DeviceStream& stream) noexcept;

  // Returns the streams of the device on which memory was requested, except forgotten ones. Empty
  // if the device does not exist.
  std::vector<DeviceStream> of(int device) const;

  // Waits until no thread of the allocator is in a driver call for the device. Call this before the
  // device's context is destroyed.
  void finish_prefetches() noexcept;

  // Call this right after the program has destroyed the device's context with all its memory,
  // streams and events (cudaDeviceReset). Frees the live blocks in that memory and returns their
  // addresses, which must not be freed again. Blocks in ordinary memory stay live. Other threads
  // must not use the device during the call, as during the reset itself.
  std::vector<void*> forget_device(int device);

  // Waits for all work of the device. Returns false if work may still be in flight: if the device
  // fails, or if a stream is being captured, because waiting would invalidate the capture.
  bool wait_for_device(int device);

 private:
  Engine* engine_;
};

inline Streams CachingManagedAllocator::streams() const {
  return Streams(*engine_);
}

}  // namespace uvm
