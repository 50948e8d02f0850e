// State of one 2 MiB stretch of managed address space: which 4 KiB pages are where, and which
// devices hold a 2 MiB chunk of memory for it. A device holds a chunk from the first page made
// resident there until the chunk is evicted or the memory freed, also while no page is resident
// ("unused"), as the modelled driver does. Plain state; the rules are in Residency, the chunk lists
// in DeviceMemory. Guarded by the machine's mutex.
#pragma once

#include <cstddef>
#include <list>
#include <vector>

#include <uvmalloc/sim/engine/page_mask.hpp>

namespace uvmsim {

// The lists a held chunk can be on, in the order they are evicted from.
enum class ChunkList { kUnused, kDiscarded, kUsed, kNone };

struct Block {
  struct DeviceSide {
    PageMask resident;
    PageMask mapped;  // pages that are elsewhere and that this device reaches over the link
    ChunkList list = ChunkList::kNone;
    std::list<Block*>::iterator position;  // on that list
  };

  Block(std::size_t block_index, std::size_t device_count)
      : index(block_index), devices(device_count) {}

  PageMask& resident_at(int location) {
    return location < 0 ? host : devices[static_cast<std::size_t>(location)].resident;
  }

  PageMask anywhere() const {
    PageMask pages = host;
    for (const DeviceSide& side : devices) pages |= side.resident;
    return pages;
  }

  std::size_t index;  // its number among all blocks
  PageMask host;
  PageMask discarded;  // contents declared useless: moved without a copy
  std::vector<DeviceSide> devices;
};

}  // namespace uvmsim
