// The streams of one thread's cache. Finds a stream by its index, or by what a request names:
// memory kind, device and handle. Owned by the ThreadCache, whose lock guards it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "allocator/cache/stream_cache.hpp"
#include "allocator/heap/pool.hpp"
#include "allocator/heap/stream_key.hpp"
#include "allocator/policy/allocation_policy.hpp"

namespace uvm {

class StreamTable {
 public:
  // Returns nullptr if the stream is not among the 16 recently used ones.
  StreamCache* recent(Facade facade, int device, StreamHandle stream) const {
    StreamCache* of = recent_[slot_of(facade, device, stream)];
    return of != nullptr && of->serves(facade, device, stream) ? of : nullptr;
  }
  // Returns nullptr if the stream is not open.
  [[gnu::always_inline]] StreamCache* find(StreamIndex stream) const {
    const std::size_t index = position(stream);
    return index < streams_.size() ? streams_[index].get() : nullptr;
  }
  // The stream must be open.
  StreamCache& at(StreamIndex stream) const { return *streams_[position(stream)]; }

  // Opens the stream if it is not open yet, and makes it a recent one.
  void open(const StreamKey& key, StreamIndex stream, ThreadCounters& counts) {
    const std::size_t index = position(stream);
    if (index >= streams_.size()) streams_.resize(index + 1);
    std::unique_ptr<StreamCache>& of = streams_[index];
    if (of == nullptr) {
      of = std::make_unique<StreamCache>(key, stream, counts);
    } else if (of->key() != key) {
      rename(stream, key);
    }
    // The streams of all threads share the handle of per-thread streams, so it names none of them.
    if (key.private_pool != 0 || !key.device_stream().can_be_named()) return;
    recent_[slot_of(key.facade, key.device, key.stream)] = of.get();
  }
  void rename(StreamIndex stream, const StreamKey& key) {
    StreamCache* of = find(stream);
    if (of == nullptr) return;
    forget(of);
    of->rename(key);
  }
  // From now on, the stream is found by its index alone.
  void forget(StreamCache* of) {
    std::replace(recent_.begin(), recent_.end(), of, static_cast<StreamCache*>(nullptr));
  }
  void drop(StreamIndex stream) noexcept {
    StreamCache* of = find(stream);
    if (of == nullptr) return;
    forget(of);
    streams_[position(stream)].reset();
  }

  template <class Visit>
  void each(Visit visit) const {
    for (const auto& of : streams_) {
      if (of != nullptr) visit(*of);
    }
  }

 private:
  static std::size_t slot_of(Facade facade, int device, StreamHandle stream) {
    std::uintptr_t bits = address_of(stream);
    return (bits ^ (bits >> 4) ^ (bits >> 9) ^ (static_cast<std::size_t>(device) << 2) ^
            static_cast<std::size_t>(facade)) %
           policy::kRecentStreams;
  }

  std::array<StreamCache*, policy::kRecentStreams> recent_{};  // by slot_of()
  std::vector<std::unique_ptr<StreamCache>> streams_;          // by position(StreamIndex)
};

}  // namespace uvm
