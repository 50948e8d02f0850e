// Plain values in the allocator's interface.
#pragma once

#include <cstddef>
#include <cstdint>

#include <uvmalloc/device_runtime.hpp>
#include <uvmalloc/facade.hpp>
#include <uvmalloc/place.hpp>
#include <uvmalloc/place_set.hpp>

namespace uvm {

// The result of CachingManagedAllocator::find().
struct BlockDescription {
  void* base = nullptr;
  std::size_t size_bytes = 0;  // rounded size
  std::size_t requested_bytes = 0;
  Facade facade = Facade::kHost;
  int device = 0;
  StreamHandle stream = nullptr;   // set for device memory only
  std::uint64_t private_pool = 0;  // 0: none
  Place location;                  // the place of its latest use
  bool live = false;
  bool exported = false;
  bool movable = false;           // shares at most its first and last 2 MiB page with other blocks
  bool waits_when_freed = false;  // device memory only: other streams may still use the block
  bool used_by_host = false;      // the host is one of the block's users
  bool pinned = false;            // the program sees it as page-locked memory on the host
  std::uint32_t references = 0;   // indirect records
};

struct MoveRequest {
  Place source;  // the place of the use that moves; a block may be used at several places
  Place destination;
  int stream_device = 0;  // the device of `stream`
  // To a device: the stream that will use the bytes. To the host: the stream that wrote them.
  StreamHandle stream = nullptr;
  bool wait = true;  // to the host: first wait for that stream and for recorded streams
  // The number of bytes to move, from the given address on; 0: the whole block.
  std::size_t size_bytes = 0;
  // Whether the caller will release the record. If not, all moves to a place share one record,
  // which is freed with the block.
  bool held = true;
  // Whether the use at `source` continues after the move, as for the two sides of a copy-on-write
  // copy. Both places are then charged for the block until note_places().
  bool keeps_source = false;
};

// A range that a kernel uses, for the trace. Has the layout of uvmalloc_trace_range.
struct TracedRange {
  const void* address = nullptr;
  std::size_t size_bytes = 0;
  int access = 0;  // 1: read, 2: written, 3: both
};

// Signs that a program searches for its largest batch by trying batches until memory runs out.
enum class SearchSign : std::uint8_t {
  kNone,
  kCatchesErrors,  // a running function handles out-of-memory errors
  kSearches,       // a running function is known to search for the largest batch
};

// A live block of a private pool.
struct PrivateBlock {
  void* address = nullptr;
  std::size_t size_bytes = 0;
  std::size_t requested_bytes = 0;
};

}  // namespace uvm
