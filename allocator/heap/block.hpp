// Defines the record of a block; a block is the memory that a caller gets. The record is in
// ordinary memory, never in managed memory, and holds the allocation's pair of storage records.
// There are three kinds of block:
//  * small (up to kSmallBytes): an object of a jemalloc arena. The arena's extents are packed
//    blocks.
//  * packed: cut in steps of 512 bytes from pages that the block shares with other blocks. All
//    larger device blocks, and larger host blocks below kPageGranularBytes. A large packed block
//    shares at most its first and last page. With whole pages it would need up to two more, and
//    pages of a device are scarce.
//  * page-granular: the only block in its 2 MiB pages, so that the block can be moved, advised and
//    released separately. Host blocks from kPageGranularBytes on, which programs move to devices.
//
// The caller owns the record of a live block, and a thread cache owns the records of the blocks
// that it holds. The state lock guards all other records. Any thread may read `state`.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <uvmalloc/place_set.hpp>
#include "allocator/policy/facade_traits.hpp"
#include "allocator/policy/size_classes.hpp"
#include "hints/placement_planner.hpp"
#include "storage/pages.hpp"
#include "storage/storage_records.hpp"

namespace uvm {

struct Span;
struct PageBlock;

// The index of a pool in PoolTable. The kPoolsPerStream pools of a memory kind, device and stream
// have neighbouring indices.
using PoolIndex = std::uint32_t;
inline constexpr PoolIndex kPoolsPerStream = 2;
// The index of a stream in PoolTable. A stream has one for each memory kind and device.
enum class StreamIndex : std::uint32_t {};
constexpr StreamIndex stream_of(PoolIndex pool) {
  return StreamIndex{pool / kPoolsPerStream};
}
constexpr StreamIndex& operator++(StreamIndex& stream) {
  return stream = StreamIndex{static_cast<std::uint32_t>(stream) + 1};
}
constexpr std::size_t position(StreamIndex stream) {
  return static_cast<std::size_t>(stream);
}

// Work of a stream that must finish before the block is used again.
struct Fence {
  DeviceStream stream;  // the event was recorded on this stream
  EventHandle event = nullptr;
};

// State that few blocks have, kept outside their records (SideStates).
struct BlockSideState {
  DeviceStream mover;               // stream of the block's last move to a device, if any
  std::vector<DeviceStream> uses;   // streams that touched a live block, except the pool's own
  std::vector<Fence> fences;        // of a free displaced block: its owning pool waits for them
  std::optional<PlaceSet> used_at;  // of a live block that was moved; not set: its pool's place
  std::optional<bool> pinned;       // argument of set_pinned(); not set: the memory kind decides
  std::uint32_t group = 0;          // of a live block: a GroupNumber (BlockGroups)
};

enum class BlockState : std::uint8_t {
  kFree,       // in a pool's index, or free in an arena
  kCached,     // in a thread's cache
  kLive,       // in use by a caller
  kReleasing,  // in no index: taken out of an index, or freed while its fences are recorded
  kFenced,     // waits for its fences
  kArena,      // cut into small objects, which have records of their own
};

enum class BlockKind : std::uint8_t { kSmall, kPacked, kPageGranular };

// A page block's address in granules, followed by its number. So keys sort by address. Addresses
// have 48 bits (PageMap), which leaves 25 bits for numbers.
using BlockKey = std::uint64_t;
inline constexpr std::uint32_t kBlockKeys = 1u << 25;
inline constexpr BlockKey kNoBlock = UINT64_MAX;  // sorts after all keys

struct alignas(64) Block {  // one cache line; PageBlock uses its last quarter
  // A free page block's node in an index (FreeTree). It shares memory with the indirect record,
  // which only live blocks have.
  struct IndexNode {
    std::uint32_t left;  // a page block's number; 0: none
    std::uint32_t right;
    BlockKey lowest;  // of this block and all blocks below it in the tree
  };
  union {
    IndirectStorage use;
    IndexNode node;
  };
  RealStorage real;
  std::atomic<BlockState> state{BlockState::kFree};
  BlockKind kind = BlockKind::kSmall;
  // Live block: the block has no side state and is used by its owning pool, so that its free takes
  // the short path. Free block: the block has no fences.
  bool has_no_side_state = true;
  bool exported = false;  // code that cannot be observed got a raw pointer to the block
  // Live block: the pool that served the block, with the caller's memory kind, device and stream.
  // Free block: the pool in which the block is free.
  PoolIndex pool = 0;

  Block() : use() {}

  char* address() const { return real.address; }
  // Sets the address. A thread that still knows the record (ThreadCache::known_at) may read the
  // address at the same time.
  void place_at(char* address) {
    std::atomic_ref(real.address).store(address, std::memory_order_relaxed);
  }
  bool starts_at(const void* address) const {
    auto& place = const_cast<char*&>(real.address);  // atomic_ref takes no const object
    return std::atomic_ref(place).load(std::memory_order_relaxed) == address;
  }
  char* end() const { return real.address + size_bytes(); }
  std::size_t size_bytes() const { return real.size_bytes(); }
  std::size_t requested_bytes() const { return use.size_bytes(); }
  BlockState now() const { return state.load(std::memory_order_relaxed); }
  void set(BlockState next) { state.store(next, std::memory_order_relaxed); }

  static Block* of_use(IndirectStorage* record) {
    return reinterpret_cast<Block*>(reinterpret_cast<char*>(record) - offsetof(Block, use));
  }
};

// State that only page-granular blocks have, kept outside their records.
struct OwnPages {
  Span* span = nullptr;
  SegmentPlacement placement;
  std::uint64_t displaced_at = 0;  // a count: larger for blocks that were displaced later
};

// A packed or page-granular block, cut out of a run of pages. `owning_pool` owns these pages. After
// a move, the block may be free in another pool, which may serve it: the block is then displaced.
struct PageBlock : Block {
  PoolIndex owning_pool = 0;
  std::uint32_t id = 0;  // the block's number in PageBlockStore; 0 is no block
  // `kind` decides which member of the union is in use.
  struct Neighbours {
    std::uint32_t previous;  // by address, in the same run of pages; 0: none
    std::uint32_t next;
  };
  union {
    Neighbours chain;
    OwnPages* own_pages;
  };

  PageBlock() : chain{0, 0} {}
};

static_assert(sizeof(Block) == 64 && sizeof(PageBlock) == 64);

inline BlockKey key_of(const PageBlock* block) {
  return address_of(block->address()) * (kBlockKeys / kGranule) | block->id;
}

}  // namespace uvm
