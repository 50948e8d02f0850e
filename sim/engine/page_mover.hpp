// Moves pages between the host and the devices: gets and releases chunks, evicts, and counts the
// bytes that a real machine would copy, zero and allocate. Residency decides which pages move.
// Bytes are never copied, only masks change (see Arena).
//
// Refers to the blocks, to the devices' and the host's memory, and to the counters of the machine.
// The machine's mutex guards all of these and this class.
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
  // Returns the mapped pages of a block of ordinary memory, given the block's index among these
  // blocks.
  using Mapped = std::function<PageMask(std::size_t ordinary_block)>;
  enum class Others { kKeep, kDrop };

  // Called when pages that the host can access migrate to a device, because the host's next touch
  // must fault.
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

  // Makes the pages resident at the location, and drops or keeps other copies. The block becomes
  // the last to be evicted. Returns kOutOfMemory if there is no free chunk or host memory.
  Status make_resident(int location, Block& block, const PageMask& pages, Others others);

  // Moves a block without looking at each page. This works only if all its pages are at one place,
  // or no page is resident. Otherwise, or if memory is short, moves nothing and returns false.
  bool move_whole(int location, Block& block);

  void drop_elsewhere(int location, Block& block, const PageMask& pages);

  // Moves a held chunk to the list that its block's masks require. A chunk already on that list
  // keeps its position.
  void settle_chunk(int device, Block& block);
  void settle_chunks(Block& block);

  // Frees the pages. Releases chunks without remaining pages.
  void drop(Block& block, const PageMask& pages);
  void drop_whole(Block& block);
  // Frees pages of ordinary memory that the program has unmapped.
  void drop_unmapped(Block& block);
  void drop_unmapped();

  // Evicts until `bytes` are free on the device. Returns false if that is impossible. If
  // unevictable memory is the reason, evicts nothing.
  bool make_room(int device, std::size_t bytes);

  // Returns the work done since the last call.
  PlacementWork take_work() { return std::exchange(work_, {}); }
  PlacementWork& work() { return work_; }
  bool has_work() const { return work_ != PlacementWork{}; }

  std::string broken_invariant() const;

 private:
  // Pages that become resident at a location: newly populated, or copied from another location.
  struct Arrival {
    std::size_t populated_bytes = 0;
    std::size_t from_host_bytes = 0;
    std::size_t from_devices_bytes = 0;
  };

  static Arrival arrival_of(const BlockPages& pages, const PageMask& missing);
  void count_arrival(int location, const Arrival& arrival);
  static ChunkList wanted_list(const BlockPages& pages, int device);
  // Returns whether the block occupies single pages of a device instead of a chunk.
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
