// The record of a block: the memory that a caller gets. The record lies in ordinary memory, never
// in managed memory, and holds the allocation's pair of storage records. There are three kinds:
//  * small (up to kSmallBytes): an object of a jemalloc arena, whose extents are packed blocks.
//  * packed: cut at 512 byte steps from pages that it shares with others. All other device blocks,
//    and host blocks below kPageGranularBytes. A large packed block shares its first and last page
//    at most; pages of its own would cost up to two more, in memory that is scarce.
//  * page-granular: it has its 2 MiB pages for itself, so it can be moved, advised and given back
//    alone. Host blocks from kPageGranularBytes on, which programs move to devices.
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
struct RunBlock;

// The index of a pool in PoolTable: kPoolsPerStream neighbours belong to one facade, device and
// stream.
using PoolIndex = std::uint32_t;
inline constexpr PoolIndex kPoolsPerStream = 2;
constexpr PoolIndex first_of(PoolIndex pool) {
  return pool - pool % kPoolsPerStream;
}

// Work that must be over before the block is used again.
struct Fence {
  DeviceStream stream;  // on which the event was recorded
  EventHandle event = nullptr;
};

// State that few blocks have. It is kept beside their records (SideStates).
struct BlockSideState {
  DeviceStream mover;               // of its last move to a device, if it had one
  std::vector<DeviceStream> uses;   // streams that touched a live block, other than its own
  std::vector<Fence> fences;        // of a free displaced block: its home must wait for them
  std::optional<PlaceSet> used_at;  // of a live block that moved; else where its pool is used
  std::optional<bool> pinned;       // set_pinned() was called; else the facade decides
};

enum class BlockState : std::uint8_t {
  kFree,       // in a pool's index, or with the arena
  kCached,     // in a thread's cache
  kLive,       // with a caller
  kReleasing,  // given back; its fences are being recorded
  kFenced,     // waits for its fences
  kArena,      // cut into small objects, which have records of their own
};

enum class BlockKind : std::uint8_t { kSmall, kPacked, kPageGranular };

// The address of a run block in granules and its number, in one word. Keys are in the order of
// addresses, and name the block. Addresses have 48 bits (PageMap), which leaves 25 for numbers.
using BlockKey = std::uint64_t;
inline constexpr std::uint32_t kBlockKeys = 1u << 25;
inline constexpr BlockKey kNoBlock = UINT64_MAX;  // behind all others

struct alignas(64) Block {  // a cache line; its last quarter is RunBlock's
  // The node of a free run block in the index (FreeTree) lies where a live block has its own
  // indirect record.
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
  // A live block: its free takes the short path. It has no side state and is used by its home pool.
  // A free block: it carries no fences.
  bool plain = true;
  bool exported = false;  // a raw pointer has left to code that cannot be followed
  // Live: the pool that served it; its facade, device and stream are the caller's. Free: the pool
  // in which it is free.
  PoolIndex pool = 0;

  Block() : use() {}

  char* address() const { return real.address; }
  // Moves the record. Relaxed: a thread that remembers the block may read it at the same time.
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

// State of page-granular blocks alone, beside their record.
struct OwnPages {
  Span* span = nullptr;
  SegmentPlacement placement;
  std::uint64_t displaced_at = 0;  // grows with each block that is displaced
};

// A packed or page-granular block, cut out of a run of pages. `home` is the pool whose pages it
// lies in. A block that moved may be free, and used, in another pool: it is displaced.
struct RunBlock : Block {
  PoolIndex home = 0;
  std::uint32_t id = 0;  // its number in the store of run blocks; never 0 in use
  // `kind` decides which member of the union is in use.
  struct Neighbours {
    std::uint32_t previous;  // by address, in the same run of pages; 0: none
    std::uint32_t next;
  };
  union {
    Neighbours chain;
    OwnPages* own_pages;
  };

  RunBlock() : chain{0, 0} {}
};

static_assert(sizeof(Block) == 64 && sizeof(RunBlock) == 64);

inline BlockKey key_of(const RunBlock* block) {
  return address_of(block->address()) * (kBlockKeys / kGranule) | block->id;
}

}  // namespace uvm
