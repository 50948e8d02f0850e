// Plain values of the allocator's interface.
#pragma once

#include <cstddef>
#include <cstdint>

#include <uvmalloc/device_runtime.hpp>
#include <uvmalloc/facade.hpp>
#include <uvmalloc/place.hpp>
#include <uvmalloc/place_set.hpp>

namespace uvm {

// The answer of find().
struct BlockDescription {
  void* base = nullptr;
  std::size_t size_bytes = 0;  // as rounded
  std::size_t requested_bytes = 0;
  Facade facade = Facade::kHost;
  int device = 0;
  StreamHandle stream = nullptr;   // device memory only
  std::uint64_t private_pool = 0;  // 0: none
  Place location;                  // of its latest use
  bool live = false;
  bool exported = false;
  bool movable = false;           // it shares at most its first and last 2 MiB page
  bool waits_when_freed = false;  // device memory only: other streams may still use it
  bool used_by_host = false;      // some use, not necessarily the latest, is on the host
  bool pinned = false;            // the program sees its use on the host as page-locked memory
  std::uint32_t references = 0;   // indirect records
};

struct MoveRequest {
  Place source;  // of the use that moves: a block may have several
  Place destination;
  int stream_device = 0;  // the device of `stream`
  // To a device: the stream that will use the bytes. To the host: the stream that wrote them.
  StreamHandle stream = nullptr;
  bool wait = true;  // to the host: first wait for that stream and the recorded ones
  // The bytes to move, from the given address on; 0: the whole block.
  std::size_t size_bytes = 0;
  // Whether the caller releases the record. Otherwise one record per place serves all moves to it,
  // and is freed with the block.
  bool held = true;
  // Whether the use at `source` continues beside the new one, as on both sides of a copy-on-write
  // copy. Both places are then charged for the block until note_places().
  bool keeps_source = false;
};

// A range that a kernel uses, for the trace. The same as uvmalloc_trace_range.
struct TracedRange {
  const void* address = nullptr;
  std::size_t size_bytes = 0;
  int access = 0;  // 1: read, 2: written, 3: both
};

// Signs that a program searches for the largest batch by running out of memory.
enum class SearchSign : std::uint8_t {
  kNone,
  kCatchesErrors,  // a function that is running handles out-of-memory errors
  kSearches,       // a function that is running is known to search
};

// A live block of a private pool.
struct PrivateBlock {
  void* address = nullptr;
  std::size_t size_bytes = 0;
  std::size_t requested_bytes = 0;
};

}  // namespace uvm
