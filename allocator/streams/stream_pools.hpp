// Manages the pools of each stream. If no call can name a stream any more, the next new stream
// adopts that stream's pools. Thread-safe; functions without a LockedHeap take the state lock
// themselves.
#pragma once

#include <optional>
#include <vector>

#include "allocator/cache/thread_caches.hpp"
#include "allocator/state/block_returner.hpp"
#include "allocator/streams/fenced_blocks.hpp"

namespace uvm {

class StreamPools {
 public:
  StreamPools(Machine& machine, HeapState& state, ThreadCaches& caches, FencedBlocks& fenced,
              BlockReturner& returner)
      : machine_(machine), state_(state), caches_(caches), fenced_(fenced), returner_(returner) {}
  StreamPools(const StreamPools&) = delete;
  StreamPools& operator=(const StreamPools&) = delete;

  // The pools of a stream, for the duration of a request that uses them. While this object exists,
  // pools of a private pool keep their index, even if the private pool is released.
  class Opened {
   public:
    ~Opened();
    Opened(const Opened&) = delete;
    Opened& operator=(const Opened&) = delete;

    StreamIndex pools{};  // the pools of the stream
    bool is_new = false;
    bool may_cache_large = false;  // Pool::may_cache_large() of the pool of that class

   private:
    friend class StreamPools;
    explicit Opened(HeapState& state) : state_(state) {}
    Opened(StreamPools& owner, const StreamKey& key, PoolClass pool_class);
    HeapState& state_;
    bool is_counted_ = false;  // in Pool::requests
  };
  // Opens the pools of a stream: makes or adopts them if needed. Makes room to count its blocks.
  Opened open(const StreamKey& key, PoolClass pool_class);
  // Returns the streams of the device that calls can still name.
  std::vector<DeviceStream> streams_of(int device) const;
  // Called before the stream is destroyed. The next new stream adopts the pools of this stream, and
  // runs its work only after the current work of this stream. Waits for the device if private pools
  // hold memory of the stream. Throws std::out_of_range if the device does not exist.
  void retire_stream(int device, StreamHandle stream);
  // Same as retire_stream(), for a stream that the calling thread may be unable to name.
  void retire(const DeviceStream& stream);
  // Called on a thread that ends. Orphans the thread's per-thread streams, so that streams of a
  // later thread adopt their pools. `streams` lists the streams that the thread used.
  void note_thread_end(const std::vector<StreamIndex>& streams) noexcept;
  // Gives back each stream's pool that belongs to a released private pool and holds no memory any
  // more. So a program that captures and releases graphs for ever has only as many pools as it
  // needs at one time. If there are such pools, stops all threads that allocate or free.
  void give_back_released() noexcept;

 private:
  bool has_pools_of(const StreamKey& key) const;
  // Gives the pools of a retired stream to a stream that has none. A per-thread stream may also get
  // the pools of a thread that has ended. The new stream waits for their earlier work. So a program
  // that keeps making and destroying streams needs only as many pools as it has streams at the same
  // time.
  void adopt(const StreamKey& key);
  static void orphan(const LockedHeap& heap, StreamIndex pools,
                     std::optional<Fence> last_work) noexcept;
  static std::vector<StreamIndex> private_pools_of(const LockedHeap& heap,
                                                   const DeviceStream& stream);
  static bool is_released(const LockedHeap& heap, StreamIndex pools);
  static std::optional<StreamIndex> next_released(const LockedHeap& heap, StreamIndex pools);
  void give_back(const LockedHeap& heap, StreamIndex pools) noexcept;
  void retire_in_private_pools(const std::vector<StreamIndex>& streams, const DeviceStream& retired,
                               const DeviceStream& stand_in);

  Machine& machine_;
  HeapState& state_;
  ThreadCaches& caches_;
  FencedBlocks& fenced_;
  BlockReturner& returner_;
};

}  // namespace uvm
