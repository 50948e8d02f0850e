// A request for memory, and the block that is found for it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>

#include "allocator/base/poison.hpp"
#include "allocator/heap/block_pools.hpp"
#include "allocator/state/heap_state.hpp"
#include "allocator/trace/trace_event.hpp"

namespace uvm {

// Properties that few requests have.
struct RequestShape {
  std::size_t alignment_bytes = 0;
  // The request is for a private pool. A private pool has no small objects, because their addresses
  // could not be restored.
  bool is_private = false;
  bool whole_pages = false;  // the request is for a private pool with whole pages for each block
  bool is_aligned() const { return alignment_bytes > kGranule; }
  // Returns the extra bytes to request, so that an aligned part fits. The bytes in front of an
  // aligned device block become a separate block.
  std::size_t room_bytes(Facade facade) const {
    return is_aligned() && is_stream_ordered(facade) && !whole_pages
               ? alignment_bytes + kSmallestPacked
               : 0;
  }
};

struct Request {
  Facade facade;
  int device;
  std::size_t size_bytes;  // rounded
  std::size_t requested_bytes;
  StreamHandle stream;
  PoolClass pool_class;
  StreamIndex pools;  // the pools of the stream
  // For an aligned request: the part to cut out of a block of `Request::size_bytes`.
  struct Aligned {
    std::size_t to_bytes = 0;  // the alignment; 0: the part starts where the block starts
    std::size_t size_bytes = 0;
  };
  Aligned aligned = {};

  // The only function that rounds sizes. `bytes` is at most kLargestRequest - room_bytes().
  [[gnu::always_inline]] static Request make(Facade facade, int device, std::size_t bytes,
                                             StreamHandle stream, StreamIndex pools,
                                             const RequestShape& shape = {}) {
    Request made{facade,
                 device,
                 rounded_size(facade, bytes),
                 bytes,
                 is_stream_ordered(facade) ? stream : nullptr,
                 pool_class_of(facade, bytes),
                 pools};
    if (shape.is_aligned() && !is_stream_ordered(facade)) {
      // Page-granular blocks start on a page, so they are aligned.
      made.size_bytes = round_up(bytes, kPageBytes);
      made.pool_class = PoolClass::kPageGranular;
    }
    if (shape.whole_pages) made.size_bytes = round_up(made.size_bytes, kPageBytes);
    if (shape.is_private) {
      made.size_bytes = std::max(made.size_bytes, kSmallestPacked);
      made.pool_class = pool_class_of(facade, made.size_bytes);
    }
    if (const std::size_t room_bytes = shape.room_bytes(facade); room_bytes != 0) {
      made.aligned = {shape.alignment_bytes, std::max(made.size_bytes, kSmallestPacked)};
      made.size_bytes = made.aligned.size_bytes + room_bytes;
      made.pool_class = pool_class_of(facade, made.size_bytes);
    }
    return made;
  }

  PoolIndex pool() const { return pool_of(pools, pool_class); }
  std::size_t pages_bytes() const { return round_up(size_bytes, kPageBytes); }
  // Returns the stream that will use the block.
  DeviceStream consumer() const {
    return is_stream_ordered(facade) ? DeviceStream::named(device, stream) : DeviceStream{};
  }
  TraceBlock traced(void* address, std::size_t block_bytes) const {
    return {facade, device, address, requested_bytes, block_bytes, stream};
  }
};

// A block found for a request: taken out of its index, but not yet live.
struct Found {
  PageBlock* block = nullptr;
  bool from_cache = true;
  // The start of the part whose pages still have to be moved to the place of use.
  char* populate = nullptr;
  std::size_t populate_bytes = 0;
};

// Makes a taken block of pool `owning_pool` live, and makes its pair of storage records.
[[gnu::always_inline]] inline void* mark_live(const LockedHeap& heap, const Request& request,
                                              Block* block, PoolIndex owning_pool) {
  // If a pool of the request's stream owns the block, that pool uses it, even if of another class.
  block->pool = stream_of(owning_pool) == request.pools ? owning_pool : request.pool();
  // The free of a displaced block must return the block's pages to its owning pool.
  block->has_no_side_state = owning_pool == block->pool;
  if (owning_pool != block->pool) heap->transfer_pages(*block, owning_pool, block->pool);
  block->exported = false;
  block->real.references = 0;
  block->real.indirect = nullptr;
  std::construct_at(&block->use, request.requested_bytes,
                    place_of_use(request.facade, request.device));
  block->real.attach(&block->use);
  block->set(BlockState::kLive);
  unpoison(block->address(), block->size_bytes());
  return block->address();
}

}  // namespace uvm
