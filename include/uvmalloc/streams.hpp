// The streams of a program: which of them use a block, when they end, and when they capture.
// Thread-safe. Functions throw std::out_of_range if the device does not exist, unless they are
// noexcept or say otherwise.
#pragma once

#include <vector>

#include <uvmalloc/allocator.hpp>

namespace uvm {

class Streams {
 public:
  explicit Streams(Engine& engine) : engine_(&engine) {}

  // As CachingManagedAllocator::record_use(), for all streams of the device for which memory was
  // ever requested.
  bool record_use_of_all(const void* address, int device);

  // Returns the streams that work on the block, its own included; none if the address is in no live
  // block.
  std::vector<DeviceStream> uses_of(const void* address) const;

  // Waits until no recorded stream works on the block any more. Call it before the host writes to
  // the block in place. Throws std::runtime_error if a stream cannot be waited for, for example
  // because it is being captured.
  void wait_for_uses(const void* address);

  // Call this before the stream is destroyed; it must get no more work. Another stream may get its
  // handle, and that stream's work is not ordered after this one's. The next new stream takes over
  // the memory cached for this one, and starts after its present work.
  //
  // If the stream is captured, its present work cannot be ordered: the device is waited for before
  // that memory, and blocks of other streams that it worked on, are used again. If private pools
  // hold some of its memory, the device is waited for at once. If the wait is not possible, the
  // memory stays unused until those pools are released.
  void forget(int device, StreamHandle stream);

  // Call begin_capture() before the call that begins a capture of the stream, in the same thread.
  // Call end_capture() after its end, or if it did not begin. The allocator's waits for the
  // stream's work then do not invalidate the capture.
  void begin_capture(const DeviceStream& stream);
  void end_capture(const DeviceStream& stream) noexcept;

  // Returns the streams of the device for which memory was requested and which are not forgotten. A
  // device that does not exist has none.
  std::vector<DeviceStream> of(int device) const;

  // Waits until no thread of the allocator calls the device. Call it before the program destroys
  // the device's context.
  void finish_prefetches() noexcept;

  // Call this right after the program has destroyed the device's context, and with it all memory,
  // streams and events there (cudaDeviceReset). Ends the blocks of that memory and returns their
  // addresses, which must not be freed again. Blocks in ordinary memory stay. Other threads must
  // not use the device meanwhile, as for the reset itself.
  std::vector<void*> forget_device(int device);

  // Waits for all work of the device. Returns false if work may still be in flight, because the
  // device fails or because a stream captures: waiting would invalidate its graph.
  bool wait_for_device(int device);

 private:
  Engine* engine_;
};

inline Streams CachingManagedAllocator::streams() const {
  return Streams(*engine_);
}

}  // namespace uvm
