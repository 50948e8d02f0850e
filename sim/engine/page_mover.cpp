#include "sim/engine/page_mover.hpp"

#include <string>

namespace uvmsim {
namespace {

constexpr std::size_t kHostGroupPages = 16;  // 64 KiB

// Returns the pages that the host allocates: around each page, the largest unallocated piece of 2
// MiB, 64 KiB or 4 KiB.
PageMask host_allocation(const PageMask& pages, const PageMask& backed) {
  if (backed.none()) return ~PageMask{};
  PageMask taken;
  for (std::size_t group = 0; group < kPagesPerBlock; group += kHostGroupPages) {
    const PageMask around = page_mask(group, kHostGroupPages);
    if ((pages & around).none()) continue;
    taken |= (backed & around).none() ? around : pages & around & ~backed;
  }
  return taken;
}

}  // namespace

// ---- pages that become resident

Status PageMover::make_resident(int location, Block& block, const PageMask& pages, Others others) {
  const PageMask missing = pages & ~block.by_page->resident_at(location);
  if (location != kHost) {
    const bool is_held =
        is_held_by_page(block) ? hold_pages(location, block, missing) : hold_chunk(location, block);
    if (!is_held) return Status::kOutOfMemory;
    memory(location).move_to(block, ChunkList::kUsed);
    zero_chunk(location, block, missing);
    block.evicted &= ~pages;
  } else if (!back_at_host(block, missing, block.by_page->anywhere() & ~block.by_page->discarded)) {
    return Status::kOutOfMemory;
  }
  block.is_populated = true;
  count_arrival(location, arrival_of(*block.by_page, missing));
  block.by_page->resident_at(location) |= missing;
  for (BlockPages::DeviceSide& side : block.by_page->devices) side.mapped &= ~missing;
  if (others == Others::kDrop) drop_elsewhere(location, block, pages);
  if (location != kHost) {
    block.chunk(location).was_full |= block.by_page->resident_at(location).all();
    settle_chunk(location, block);  // after a read, a discarded block stays discarded
  }
  return Status::kOk;
}

bool PageMover::move_whole(int location, Block& block) {
  const int from = block.place();
  if (from == kNoLocation || is_held_by_page(block)) return false;
  if (location != kHost) {
    if (!hold_chunk(location, block)) return false;
    memory(location).move_to(block, ChunkList::kUsed);
  } else if (from != kHost && !back_at_host(block, ~PageMask{},
                                            from == Block::kNowhere ? PageMask{} : ~PageMask{})) {
    return false;
  }
  if (from == location) return true;
  if (location != kHost) {
    Block::Chunk& chunk = block.chunk(location);
    if (std::exchange(chunk.is_fresh, false) && from == Block::kNowhere)
      work_.zeroed_bytes += kBlockBytes;
    chunk.was_full = true;
    block.evicted.reset();
    unmap_from_host(block, ~PageMask{});
  }
  block.whole_at = location;
  block.is_populated = true;
  count_arrival(location, {.populated_bytes = from == Block::kNowhere ? kBlockBytes : 0,
                           .from_host_bytes = from == kHost ? kBlockBytes : 0,
                           .from_devices_bytes = from >= 0 ? kBlockBytes : 0});
  if (from >= 0) memory(from).move_to(block, ChunkList::kUnused);
  return true;
}

PageMover::Arrival PageMover::arrival_of(const BlockPages& pages, const PageMask& missing) {
  if (missing.none()) return {};
  const PageMask present = pages.anywhere();
  const PageMask copied = missing & present & ~pages.discarded;
  const std::size_t from_host = bytes_of(copied & pages.host);
  return {bytes_of(missing & ~present), from_host, bytes_of(copied) - from_host};
}

void PageMover::count_arrival(int location, const Arrival& arrival) {
  if (location == kHost) {
    counters_.populated_bytes_host += arrival.populated_bytes;
    counters_.migrated_bytes_to_host += arrival.from_devices_bytes;
    work_.to_host_bytes += arrival.from_devices_bytes;
  } else {
    counters_.populated_bytes_device += arrival.populated_bytes;
    counters_.migrated_bytes_to_device += arrival.from_host_bytes;
    counters_.migrated_bytes_between_devices += arrival.from_devices_bytes;
    work_.to_device_bytes += arrival.from_host_bytes;
    work_.between_devices_bytes += arrival.from_devices_bytes;
    if (arrival.from_devices_bytes != 0) work_.between_devices_to = location;
  }
}

void PageMover::drop_elsewhere(int location, Block& block, const PageMask& pages) {
  for (int other = kHost; other < device_count(); ++other) {
    if (other == location) continue;
    block.by_page->resident_at(other) &= ~pages;
    if (other == kHost) {
      unmap_from_host(block, pages);
    } else {
      settle_chunk(other, block);
    }
  }
}

void PageMover::unmap_from_host(Block& block, const PageMask& pages) {
  const PageMask leaving = block.host_mapped & pages;
  if (leaving.none()) return;
  block.host_mapped &= ~leaving;
  if (left_host_) left_host_(block, leaving);
}

// ---- chunks

// Returns the list on which a held chunk belongs.
ChunkList PageMover::wanted_list(const BlockPages& pages, int device) {
  if (pages.at(device).resident.none()) return ChunkList::kUnused;
  return pages.discarded.all() ? ChunkList::kDiscarded : ChunkList::kUsed;
}

void PageMover::settle_chunk(int device, Block& block) {
  if (!block.holds_chunk(device)) return;
  if (is_held_by_page(block)) {
    const PageMask& resident = block.by_page->at(device).resident;
    if (resident.none()) return memory(device).move_to(block, ChunkList::kNone);
    memory(device).charge_held(block, bytes_of(resident));
  }
  const ChunkList wanted = wanted_list(*block.by_page, device);
  if (block.list_of(device) != wanted) memory(device).move_to(block, wanted);
}

void PageMover::settle_chunks(Block& block) {
  for (int device = 0; device < device_count(); ++device) settle_chunk(device, block);
}

bool PageMover::hold_chunk(int device, Block& block) {
  if (block.holds_chunk(device)) return true;
  if (!make_room(device, kBlockBytes)) return false;
  ++work_.populated_blocks;
  block.chunk(device).is_fresh = true;
  block.chunk(device).was_full = false;
  return true;
}

// Makes room only for the arriving pages. First moves the block to the end of its list, so that
// this block is evicted last.
bool PageMover::hold_pages(int device, Block& block, const PageMask& arriving) {
  if (block.holds_chunk(device)) memory(device).move_to(block, ChunkList::kUsed);
  if (!make_room(device, bytes_of(arriving))) return false;
  if (block.holds_chunk(device)) return true;
  ++work_.populated_blocks;
  memory(device).move_to(block, ChunkList::kUsed);
  memory(device).charge_held(block, 0);
  return true;
}

// In a fresh chunk, all pages are zeroed except those copied into it. In a held chunk, arriving
// discarded pages are zeroed so that they show no old contents, unless the whole block was once
// resident in this chunk.
void PageMover::zero_chunk(int device, Block& block, const PageMask& arriving) {
  const BlockPages& pages = *block.by_page;
  Block::Chunk& chunk = block.chunk(device);
  if (is_held_by_page(block)) {
    work_.zeroed_bytes += bytes_of(arriving & ~pages.anywhere());
  } else if (std::exchange(chunk.is_fresh, false)) {
    work_.zeroed_bytes += bytes_of(~(pages.anywhere() & ~pages.discarded));
  } else if (!chunk.was_full) {
    work_.zeroed_bytes += bytes_of(arriving & pages.discarded);
  }
}

bool PageMover::make_room(int device, std::size_t bytes) {
  DeviceMemory& target = memory(device);
  if (!target.could_hold(bytes)) return false;
  while (target.free_bytes() < bytes) {
    if (!evict(device, *target.victim())) return false;
  }
  return true;
}

// Moves all pages of the block on the device to the host. Discarded pages and pages with a copy on
// the host need no transfer. Returns false, and does nothing, if the host has no room.
bool PageMover::evict(int device, Block& block) {
  drop_unmapped(block);
  if (!block.holds_chunk(device)) return true;
  block.open();
  PageMask& resident = block.by_page->resident_at(device);
  if (!back_at_host(block, resident & ~block.by_page->host, resident & ~block.by_page->discarded))
    return false;
  const std::size_t copied = bytes_of(resident & ~block.by_page->host & ~block.by_page->discarded);
  ++counters_.evicted_chunks;
  counters_.evicted_bytes += copied;
  ++(copied != 0 ? work_.copied_chunks : work_.reclaimed_chunks);
  work_.evicted_bytes += copied;
  block.by_page->host |= resident;
  block.evicted |= resident;
  resident.reset();
  memory(device).move_to(block, ChunkList::kNone);
  return true;
}

// ---- memory of the host

// Does not count ordinary memory, because it belongs to the program. Pages that a copy fills need
// no zeroing.
bool PageMover::back_at_host(Block& block, const PageMask& pages, const PageMask& copied) {
  const PageMask missing = pages & ~block.host_backed;
  if (missing.none() || blocks_.is_ordinary(block)) return true;
  const PageMask taken = host_allocation(missing, block.host_backed);
  const std::size_t bytes = bytes_of(taken);
  if (!host_.take(bytes)) return false;
  work_.host_zeroed_bytes += bytes_of(taken & ~copied);
  block.host_backed |= taken;
  return true;
}

void PageMover::unback(Block& block, const PageMask& pages) {
  host_.release(bytes_of(block.host_backed & pages));
  block.host_backed &= ~pages;
}

// ---- frees

void PageMover::drop_whole(Block& block) {
  unback(block, ~PageMask{});
  block.host_mapped.reset();
  block.evicted.reset();
  block.whole_at = Block::kNowhere;
  block.is_populated = false;
  for (int device = 0; device < device_count(); ++device) {
    if (block.holds_chunk(device)) memory(device).move_to(block, ChunkList::kNone);
  }
}

void PageMover::drop(Block& block, const PageMask& pages) {
  unback(block, pages);
  block.host_mapped &= ~pages;
  if (block.place() == Block::kNowhere) return;
  block.open();
  block.evicted &= ~pages;
  block.by_page->host &= ~pages;
  block.by_page->discarded &= ~pages;
  for (int device = 0; device < device_count(); ++device) {
    BlockPages::DeviceSide& side = block.by_page->at(device);
    side.resident &= ~pages;
    side.mapped &= ~pages;
    if (!block.holds_chunk(device)) continue;
    if (side.resident.none()) {
      memory(device).move_to(block, ChunkList::kNone);
    } else {
      settle_chunk(device, block);
    }
  }
}

void PageMover::drop_unmapped(Block& block) {
  if (!blocks_.is_ordinary(block)) return;
  const PageMask unmapped = ~mapped_(blocks_.ordinary_index(block));
  if (unmapped.any()) drop(block, unmapped);
}

void PageMover::drop_unmapped() {
  blocks_.erase_ordinary_if([this](Block& block) {
    drop_unmapped(block);
    bool holds_nothing = block.place() == Block::kNowhere;
    for (int device = 0; device < device_count(); ++device)
      holds_nothing = holds_nothing && !block.holds_chunk(device);
    return holds_nothing;
  });
}

std::string PageMover::broken_invariant() const {
  std::vector<std::size_t> held_bytes(memories_.size());
  std::size_t backed_bytes = 0;
  for (const Block* block : blocks_.all()) {
    const std::string name = "block " + std::to_string(block->index);
    const BlockPages pages = block->pages();
    backed_bytes += bytes_of(block->host_backed);
    if ((pages.discarded & ~pages.anywhere()).any())
      return name + " has discarded pages that are nowhere";
    if (block->whole_at == kNoLocation && pages.place() != kNoLocation)
      return name + " is said to have pages that differ";
    if (!blocks_.is_ordinary(*block) && (pages.host & ~block->host_backed).any())
      return name + " has pages on the host without memory there";
    for (int device = 0; device < device_count(); ++device) {
      const BlockPages::DeviceSide& side = pages.at(device);
      if ((side.mapped & side.resident).any())
        return name + " maps pages from afar that are resident";
      if (!block->holds_chunk(device)) {
        if (side.resident.any()) return name + " has resident pages without a chunk";
        continue;
      }
      const std::size_t charged_bytes =
          block->chunks[static_cast<std::size_t>(device)].charged_bytes;
      held_bytes[static_cast<std::size_t>(device)] += charged_bytes;
      if (charged_bytes != (is_held_by_page(*block) ? bytes_of(side.resident) : kBlockBytes))
        return name + " is charged what it does not hold";
      if (block->list_of(device) != wanted_list(pages, device))
        return name + " has its chunk on the wrong list";
    }
  }
  for (std::size_t device = 0; device < memories_.size(); ++device) {
    if (held_bytes[device] != memories_[device].managed_bytes())
      return "chunks held and chunks charged differ";
  }
  if (backed_bytes > host_.used_bytes())
    return "blocks have more memory of the host than is charged";
  return {};
}

}  // namespace uvmsim
