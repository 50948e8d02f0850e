// The records behind an address: a block is what a caller gets, a segment the run of whole 2 MiB
// pages it lies in. A large block has a segment of its own, so it can be moved, advised and
// returned whole; small blocks share one 2 MiB segment. All of it is guarded by the allocator's
// lock and lies in ordinary memory, never in managed memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <boost/intrusive/set.hpp>

#include <uvmalloc/allocator/statistics.hpp>
#include <uvmalloc/hints/placement_planner.hpp>
#include <uvmalloc/storage/pages.hpp>
#include <uvmalloc/storage/storage_records.hpp>

namespace uvm {

// Blocks up to kSmallBytes come from shared segments, in multiples of kSmallGranule.
inline constexpr std::size_t kSmallGranule = 512;
inline constexpr std::size_t kSmallBytes = (1u << 20) - 1;

struct Pool;
struct Segment;
struct Span;

// Work that must be over before the block is used again.
struct Fence {
  int device = -1;
  EventHandle event = nullptr;
};

enum class BlockState : std::uint8_t {
  kFree,       // in the tree of a pool
  kLive,       // with a caller
  kReleasing,  // given back; its fences are being recorded
  kFenced,     // waits for its fences
};

struct Block {
  boost::intrusive::set_member_hook<> free_hook;  // in the pool where its pages are
  boost::intrusive::set_member_hook<>
      away_hook;  // in the home pool's list of blocks that are elsewhere
  char* address = nullptr;
  std::size_t size_bytes = 0;
  std::size_t requested_bytes = 0;
  BlockState state = BlockState::kFree;
  Facade facade = Facade::kHost;  // as asked for by the present caller
  int device = 0;
  bool exported = false;          // a raw pointer is in hands we cannot follow
  StreamHandle stream = nullptr;  // the caller's, for the device facade
  Segment* segment = nullptr;
  Pool* pool = nullptr;       // where it is free
  Block* previous = nullptr;  // neighbours in the segment, by address
  Block* next = nullptr;
  RealStorage real;
  IndirectStorage use;             // the allocation's own indirect record
  std::vector<DeviceStream> uses;  // streams that touched it, other than `stream`
  std::vector<Fence> fences;
};

struct BySizeThenAddress {
  bool operator()(const Block& left, const Block& right) const {
    return left.size_bytes != right.size_bytes ? left.size_bytes < right.size_bytes
                                               : left.address < right.address;
  }
};

template <auto Hook>
using BlockTree = boost::intrusive::set<
    Block, boost::intrusive::member_hook<Block, boost::intrusive::set_member_hook<>, Hook>,
    boost::intrusive::compare<BySizeThenAddress>>;
using FreeTree = BlockTree<&Block::free_hook>;
using AwayTree = BlockTree<&Block::away_hook>;

struct PoolKey {
  Facade facade = Facade::kHost;
  int device = 0;
  StreamHandle stream = nullptr;  // device facade only
  SizeClass size_class = SizeClass::kSmall;
  friend auto operator<=>(const PoolKey&, const PoolKey&) = default;
};

// Free blocks of one facade, stream and class.
struct Pool {
  PoolKey key;
  FreeTree own;     // whose home this is
  FreeTree guests;  // whose pages are here, though they were made for another facade
  AwayTree away;    // whose home this is, but whose pages are elsewhere: guests of other pools
};

struct Segment {
  Span* span = nullptr;
  Pool* home = nullptr;
  char* base = nullptr;
  std::size_t size_bytes = 0;
  SegmentPlacement placement;
  Block* first = nullptr;
  // Small segments: the block that starts at each granule, nullptr where none does. Empty for large
  // ones.
  std::vector<Block*> starts;

  bool is_large() const { return starts.empty(); }
};

}  // namespace uvm
