// State of one 2 MiB block of managed address space: the locations of its 4 KiB pages, and the
// devices that hold a 2 MiB chunk of memory for the block. A device gets a chunk when the first
// page becomes resident on the device. As in the modelled driver, the device keeps the chunk until
// the chunk is evicted or the memory is freed, even while no page is resident ("unused"). Plain
// state; the rules are in Residency, the chunk lists in DeviceMemory. Guarded by the machine's
// mutex.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <vector>

#include "sim/engine/location.hpp"
#include "sim/engine/page_mask.hpp"

namespace uvmsim {

// The lists of held chunks, in the order of eviction.
enum class ChunkList { kUnused, kDiscarded, kUsed, kNone };

// The state of each page of a block.
struct BlockPages {
  struct DeviceSide {
    PageMask resident;
    PageMask mapped;  // pages that this device accesses over the link
  };

  explicit BlockPages(std::size_t device_count) : devices(device_count) {}

  // Puts all pages at one location, or nowhere.
  void put_all(int location) {
    for (int each = kHost; each < static_cast<int>(devices.size()); ++each) {
      resident_at(each) = each == location ? ~PageMask{} : PageMask{};
    }
    for (DeviceSide& side : devices) side.mapped.reset();
    discarded.reset();
  }

  PageMask& resident_at(int location) { return location < 0 ? host : at(location).resident; }
  const DeviceSide& at(int device) const { return devices[static_cast<std::size_t>(device)]; }
  DeviceSide& at(int device) { return devices[static_cast<std::size_t>(device)]; }

  const PageMask& resident_at(int location) const {
    return location < 0 ? host : at(location).resident;
  }

  // Computes Block::whole_at from the masks.
  int place() const;

  PageMask anywhere() const {
    PageMask pages = host;
    for (const DeviceSide& side : devices) pages |= side.resident;
    return pages;
  }

  PageMask host;
  PageMask discarded;  // the program discarded the contents; such pages move without a copy
  std::vector<DeviceSide> devices;
};

struct Block {
  struct Chunk {
    ChunkList list = ChunkList::kNone;
    std::list<Block*>::iterator position;  // on `list`
    std::size_t charged_bytes = 0;         // charged to the device's memory
    bool is_fresh = false;                 // not zeroed yet
    bool was_full = false;  // all pages were resident in it at once, so no old contents are left
    std::uint64_t remote_accesses = 0;  // accesses of 128 bytes since the last migration
  };

  static constexpr int kNowhere = -3;
  static constexpr int kUnknown = -4;  // a page has changed since the last call of place()

  Block(std::size_t block_index, std::size_t count)
      : index(block_index), device_count(count), chunks(std::make_unique<Chunk[]>(count)) {}

  // Returns whether `by_page` is valid.
  bool is_by_page() const { return whole_at == kUnknown || whole_at == kNoLocation; }
  // Makes `by_page` valid, for reading or changing single pages.
  void open();
  // Computes `whole_at` if it is unknown, and returns it.
  int place();
  PageMask resident_at(int location) const;
  BlockPages pages() const;

  Chunk& chunk(int device) { return chunks[static_cast<std::size_t>(device)]; }
  ChunkList list_of(int device) const { return chunks[static_cast<std::size_t>(device)].list; }
  bool holds_chunk(int device) const { return list_of(device) != ChunkList::kNone; }

  // Whether a page was resident anywhere since the memory was allocated. Advice and discards cost
  // the driver work only for such blocks.
  bool is_populated = false;
  std::size_t index;  // index among all blocks
  std::size_t device_count;
  std::unique_ptr<Chunk[]> chunks;  // one for each device
  // The location of all pages, if all have the same location and no page is discarded or mapped by
  // a device. kNowhere if no page is resident; kNoLocation if pages differ.
  int whole_at = kNowhere;
  std::unique_ptr<BlockPages> by_page;  // valid while is_by_page()
  // Pages that have host memory, which they keep when they migrate.
  PageMask host_backed;
  PageMask evicted;      // pages that were evicted and not made resident on a device since
  PageMask host_mapped;  // pages that the host accesses without a fault, if touches are tracked
};

}  // namespace uvmsim
