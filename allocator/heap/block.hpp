// The record of a block: the memory that a caller gets. The record lies in ordinary memory, never
// in managed memory, and holds the allocation's pair of storage records. There are three kinds:
//  * small (up to kSmallBytes): an object of a jemalloc arena, whose extents are packed blocks.
//  * packed: cut in steps of 512 bytes from pages that it shares with other blocks. All other
//    device blocks, and host blocks below kPageGranularBytes. A large packed block shares at most
//    its first and last page; whole pages would cost it up to two more, in scarce memory.
//  * page-granular: the only block in its 2 MiB pages, so that it can be moved, advised and
//    released alone. Host blocks from kPageGranularBytes on, which programs move to devices.
//
// The record of a live block belongs to its caller, of a cached block to the thread cache that
// holds it. All others are guarded by the state lock. Any thread may read `state`.
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

// The index of a pool in PoolTable. The kPoolsPerStream pools of a facade, device and stream have
// neighbouring indices.
using PoolIndex = std::uint32_t;
inline constexpr PoolIndex kPoolsPerStream = 2;
constexpr PoolIndex first_of(PoolIndex pool) {
  return pool - pool % kPoolsPerStream;
}

// Work of a stream that must be over before the block is used again.
struct Fence {
  DeviceStream stream;  // on which the event was recorded
  EventHandle event = nullptr;
};

// State that few blocks have, kept outside their records (SideStates).
struct BlockSideState {
  DeviceStream mover;               // of its last move to a device, if it had one
  std::vector<DeviceStream> uses;   // streams that touched a live block, other than its own
  std::vector<Fence> fences;        // of a free displaced block: its owning pool must wait for them
  std::optional<PlaceSet> used_at;  // set for a live block that moved; else where its pool is used
  std::optional<bool> pinned;       // set_pinned() was called; else the facade decides
};

enum class BlockState : std::uint8_t {
  kFree,       // in a pool's index, or free in an arena
  kCached,     // in a thread's cache
  kLive,       // with a caller
  kReleasing,  // in no index: taken out of one, or freed while its fences are recorded
  kFenced,     // waits for its fences
  kArena,      // cut into small objects, which have records of their own
};

enum class BlockKind : std::uint8_t { kSmall, kPacked, kPageGranular };

// Names a run block by its address in granules and its number, in one word. Keys sort by address.
// Addresses have 48 bits (PageMap), which leaves 25 for numbers.
using BlockKey = std::uint64_t;
inline constexpr std::uint32_t kBlockKeys = 1u << 25;
inline constexpr BlockKey kNoBlock = UINT64_MAX;  // sorts after all keys

struct alignas(64) Block {  // one cache line; PageBlock uses its last quarter
  // A free run block has its node of the index (FreeTree) where a live block has its own indirect
  // record.
  struct IndexNode {
    std::uint32_t left;  // a run block's number; 0: none
    std::uint32_t right;
    BlockKey lowest;  // of the block itself and all below it
  };
  union {
    IndirectStorage use;
    IndexNode node;
  };
  RealStorage real;
  std::atomic<BlockState> state{BlockState::kFree};
  BlockKind kind = BlockKind::kSmall;
  // A live block: it has no side state and is used by its owning pool, so its free takes the short
  // path. A free block: it has no fences.
  bool has_no_side_state = true;
  bool exported = false;  // code that cannot be followed has a raw pointer to the block
  // Live: the pool that served it; its facade, device and stream are the caller's. Free: the pool
  // in which it is free.
  PoolIndex pool = 0;

  Block() : use() {}

  char* address() const { return real.address; }
  // Sets the address. Relaxed: a thread that remembers the record may read it at the same time.
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

// State that only page-granular blocks have, outside their records.
struct OwnPages {
  Span* span = nullptr;
  SegmentPlacement placement;
  std::uint64_t displaced_at = 0;  // larger for blocks that were displaced later
};

// A packed or page-granular block, cut out of a run of pages. `owning_pool` is the pool whose pages
// it lies in. A block that moved may be free, and used, in another pool; it is displaced then.
struct PageBlock : Block {
  PoolIndex owning_pool = 0;
  std::uint32_t id = 0;  // its number in the store of page blocks; never 0 in use
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
