// Where the pages of managed memory are, and the rules by which they move: kernel touches,
// prefetch, discard, eviction, and explicit copies. Pages are numbered through the whole managed
// arena, then through the address space of ordinary memory, if devices reach that. Their bytes
// never move, only the masks do (see Arena). Bytes that a real machine would have copied count as
// traffic.
//
// Touches by the host's own code are not seen. A page that only the host has touched is "nowhere"
// to the rules. A page on a device stays there while the host reads it. The bytes are right in both
// cases.
//
// Owns the blocks; refers to the devices' memory and to the counters of the machine, whose mutex
// guards it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <uvmalloc/sim/uvmsim.h>
#include <uvmalloc/sim/engine/block.hpp>
#include <uvmalloc/sim/engine/device_memory.hpp>
#include <uvmalloc/sim/engine/policy.hpp>
#include <uvmalloc/sim/engine/status.hpp>

namespace uvmsim {

// Pages [first, last), by number.
struct PageRange {
  std::size_t first;
  std::size_t last;
};

struct Access {
  bool read;
  bool write;
};

class Residency {
 public:
  // Whether a device may use another one's memory in place.
  using Reaches = std::function<bool(int device, int other)>;
  // The pages that exist of a block of ordinary memory, counted from the first of these.
  using Mapped = std::function<PageMask(std::size_t ordinary_block)>;

  Residency(std::size_t arena_blocks, std::vector<DeviceMemory>& memories,
            uvmsim_counters& counters, Reaches reaches, Mapped mapped);

  // Whether all pages of the blocks of `pages` are there and nowhere else, and none is discarded or
  // mapped. Then a touch by a kernel there changes nothing, whatever the policy.
  bool is_whole_at(int location, PageRange pages);

  // A kernel of `device` touches pages of one policy. kOutOfMemory where a chunk is needed and
  // unevictable memory leaves none; pages before that point have moved.
  Status touch(int device, PageRange pages, const Policy& policy, Access access);

  // Puts all pages at `location`, next to the other copies where the policy says read-mostly, and
  // ends their being discarded. Errors as for touch.
  Status prefetch(int location, PageRange pages, const Policy& policy);

  // The contents of the pages have become useless. Pages that are nowhere are left alone.
  void discard(PageRange pages);

  // An explicit copy reads or writes the pages in place; those that are nowhere come to be at
  // `location`.
  Status copy_access(int location, PageRange pages, bool write);

  // Keeps one copy of each page, the one at `preferred` where there is one: read duplication has
  // been switched off.
  void collapse(PageRange pages, int preferred = kNoLocation);

  // The pages are freed. Chunks left without a page are given back.
  void forget(PageRange pages);

  // The same for pages of ordinary memory that the program has unmapped, which nobody tells.
  void forget_unmapped();

  // Evicts until `bytes` are free on the device; false, and nothing done, where eviction cannot
  // achieve that.
  bool make_room(int device, std::size_t bytes);

  // Pages of the range at `location`.
  std::size_t resident_pages(int location, std::size_t page, std::size_t count) const;
  bool is_resident(int location, std::size_t page) const;

  // What is inconsistent, for tests; empty if nothing is.
  std::string broken_invariant() const;

  // Bytes copied between locations, evictions included, since the last call.
  std::uint64_t take_traffic_bytes();

 private:
  enum class Others { kKeep, kDrop };
  // Pages that come to be at a location: first written there, or copied from elsewhere.
  struct Arrival {
    std::size_t populated_bytes = 0;
    std::size_t from_host_bytes = 0;
    std::size_t from_devices_bytes = 0;
  };

  Block& block_at(std::size_t index) {
    if (index < blocks_.size() && blocks_[index] != nullptr) return *blocks_[index];
    return block_found_or_made(index);
  }
  Block& block_found_or_made(std::size_t index);
  const Block* find_block(std::size_t index) const;
  void open(Block& block);
  int place_of(Block& block);
  static int place_of(BlockPages& pages);
  static PageMask resident_of(const Block& block, int location);
  BlockPages pages_of(const Block& block) const;
  // each_piece calls visit(block, first, count) until one returns false; pages are counted within
  // the block. The others call visit(block, mask). each_open_block visits every block.
  // each_mixed_block skips blocks that are wholly at one place, which need no work.
  template <class Visit>
  void each_piece(PageRange pages, Visit visit);
  template <class Visit>
  void each_open_block(PageRange pages, Visit visit);
  template <class Visit>
  void each_mixed_block(PageRange pages, Visit visit);

  Status touch_block(int device, Block& block, const PageMask& pages, const Policy& policy,
                     Access access);
  Status touch_single(int device, Block& block, const PageMask& pages, const Policy& policy);
  Status touch_read_mostly(int device, Block& block, const PageMask& pages, Access access);
  void access_remotely(int device, Block& block, const PageMask& pages, bool faults);
  bool can_use_in_place(int device, int location) const;
  PageMask usable_in_place(int device, const Block& block) const;

  Status make_resident(int location, Block& block, const PageMask& pages, Others others);
  bool move_whole(int location, Block& block);
  static Arrival arrival_of(const BlockPages& pages, const PageMask& missing);
  void count_arrival(int location, const Arrival& arrival);
  void drop_elsewhere(int location, Block& block, const PageMask& pages);
  static ChunkList list_of(int device, const Block& block) {
    return block.chunks[static_cast<std::size_t>(device)].list;
  }
  static bool holds_chunk(int device, const Block& block) {
    return list_of(device, block) != ChunkList::kNone;
  }
  static ChunkList wanted_list(const BlockPages& pages, int device);
  void settle_chunk(int device, Block& block);
  bool hold_chunk(int device, Block& block);
  void evict(int device, Block& block);
  void forget_pages(Block& block, const PageMask& pages);
  void forget_unmapped(Block& block);

  int device_count() const { return static_cast<int>(memories_.size()); }
  DeviceMemory& memory(int device) { return memories_[static_cast<std::size_t>(device)]; }

  // Made when first needed: the arena's, and behind them, by number, ordinary memory's.
  std::vector<std::unique_ptr<Block>> blocks_;
  std::map<std::size_t, std::unique_ptr<Block>> ordinary_blocks_;
  std::vector<DeviceMemory>& memories_;
  uvmsim_counters& counters_;
  Reaches reaches_;
  Mapped mapped_;
  std::uint64_t traffic_bytes_ = 0;
};

}  // namespace uvmsim
