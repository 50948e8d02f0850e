// Moves pages between the host and the devices: gets and gives up chunks, evicts, and counts what a
// real machine would have copied, zeroed and allocated. Why pages move is Residency's matter. Their
// bytes never move, only the masks do (see Arena).
//
// Refers to the blocks, to the devices' and the host's memory, and to the counters of the machine,
// whose mutex guards it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <uvmalloc/sim/uvmsim.h>
#include "sim/engine/block_table.hpp"
#include "sim/engine/device_memory.hpp"
#include "sim/engine/host_memory.hpp"
#include "sim/engine/placement_work.hpp"
#include "sim/engine/status.hpp"

namespace uvmsim {

class PageMover {
 public:
  // The pages that exist of a block of ordinary memory, counted from the first of these.
  using Mapped = std::function<PageMask(std::size_t ordinary_block)>;
  enum class Others { kKeep, kDrop };

  // Pages that the host reaches are no longer there: its next touch must fault.
  using LeftHost = std::function<void(const Block&, const PageMask&)>;

  PageMover(BlockTable& blocks, std::vector<DeviceMemory>& memories, HostMemory& host,
            uvmsim_counters& counters, Mapped mapped, bool ordinary_by_page = false)
      : blocks_(blocks),
        memories_(memories),
        host_(host),
        counters_(counters),
        mapped_(std::move(mapped)),
        ordinary_by_page_(ordinary_by_page) {}

  void set_left_host(LeftHost left_host) { left_host_ = std::move(left_host); }

  // Makes the pages resident at the location, and drops them elsewhere or keeps the other copies.
  // The block is the last to be evicted then. kOutOfMemory where a chunk, or memory of the host, is
  // needed and cannot be had.
  Status make_resident(int location, Block& block, const PageMask& pages, Others others);

  // The same for all pages of a block that are at one place, or nowhere, which is known without a
  // look at each. False, and nothing moved, where they are not, or where memory is short.
  bool move_whole(int location, Block& block);

  void drop_elsewhere(int location, Block& block, const PageMask& pages);

  // Puts a held chunk on the list that its block's masks call for; one that is there already keeps
  // its place.
  void settle_chunk(int device, Block& block);
  void settle_chunks(Block& block);

  // The pages are freed. Chunks left without a page are given back.
  void drop(Block& block, const PageMask& pages);
  void drop_whole(Block& block);
  // The same for pages of ordinary memory that the program has unmapped, which nobody tells.
  void drop_unmapped(Block& block);
  void drop_unmapped();

  // Evicts until `bytes` are free on the device. False where eviction cannot achieve that; nothing
  // is done where that is because of unevictable memory.
  bool make_room(int device, std::size_t bytes);

  // What was done since the last call.
  PlacementWork take_work() { return std::exchange(work_, {}); }
  PlacementWork& work() { return work_; }
  bool has_work() const { return work_ != PlacementWork{}; }

  std::string broken_invariant() const;

 private:
  // Pages that come to be at a location: first written there, or copied from elsewhere.
  struct Arrival {
    std::size_t populated_bytes = 0;
    std::size_t from_host_bytes = 0;
    std::size_t from_devices_bytes = 0;
  };

  static Arrival arrival_of(const BlockPages& pages, const PageMask& missing);
  void count_arrival(int location, const Arrival& arrival);
  static ChunkList wanted_list(const BlockPages& pages, int device);
  // Whether it holds pages of a device one by one, without a chunk.
  bool is_held_by_page(const Block& block) const {
    return ordinary_by_page_ && blocks_.is_ordinary(block);
  }
  bool hold_chunk(int device, Block& block);
  bool hold_pages(int device, Block& block, const PageMask& arriving);
  void unmap_from_host(Block& block, const PageMask& pages);
  void zero_chunk(int device, Block& block, const PageMask& arriving);
  bool back_at_host(Block& block, const PageMask& pages, const PageMask& copied);
  void unback(Block& block, const PageMask& pages);
  bool evict(int device, Block& block);

  int device_count() const { return static_cast<int>(memories_.size()); }
  DeviceMemory& memory(int device) { return memories_[static_cast<std::size_t>(device)]; }

  BlockTable& blocks_;
  std::vector<DeviceMemory>& memories_;
  HostMemory& host_;
  uvmsim_counters& counters_;
  Mapped mapped_;
  const bool ordinary_by_page_;
  LeftHost left_host_;
  PlacementWork work_;
};

}  // namespace uvmsim
