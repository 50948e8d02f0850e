#include <uvmalloc/sim/engine/residency.hpp>

#include <algorithm>
#include <iterator>
#include <utility>

namespace uvmsim {

Residency::Residency(std::size_t arena_blocks, std::vector<DeviceMemory>& memories,
                     uvmsim_counters& counters, Reaches reaches, Mapped mapped)
    : blocks_(arena_blocks),
      memories_(memories),
      counters_(counters),
      reaches_(std::move(reaches)),
      mapped_(std::move(mapped)) {}

Block& Residency::block_found_or_made(std::size_t index) {
  auto& block = index < blocks_.size() ? blocks_[index] : ordinary_blocks_[index];
  if (!block) block = std::make_unique<Block>(index, memories_.size());
  return *block;
}

// The block's pages are looked at, or changed, one by one from here on.
void Residency::open(Block& block) {
  if (!block.is_by_page()) {
    if (!block.by_page) block.by_page = std::make_unique<BlockPages>(memories_.size());
    block.by_page->put_all(block.whole_at);
  }
  block.whole_at = Block::kUnknown;
}

// A location, kNowhere or kNoLocation, as Block::whole_at.
int Residency::place_of(Block& block) {
  if (block.whole_at == Block::kUnknown) block.whole_at = place_of(*block.by_page);
  return block.whole_at;
}

int Residency::place_of(BlockPages& pages) {
  if (pages.discarded.any()) return kNoLocation;
  int place = Block::kNowhere;
  for (int location = kHost; location < static_cast<int>(pages.devices.size()); ++location) {
    if (location != kHost && pages.at(location).mapped.any()) return kNoLocation;
    const PageMask& resident = pages.resident_at(location);
    if (resident.none()) continue;
    if (place != Block::kNowhere || !resident.all()) return kNoLocation;
    place = location;
  }
  return place;
}

PageMask Residency::resident_of(const Block& block, int location) {
  if (block.is_by_page()) return block.by_page->resident_at(location);
  return block.whole_at == location ? ~PageMask{} : PageMask{};
}

BlockPages Residency::pages_of(const Block& block) const {
  if (block.is_by_page()) return *block.by_page;
  BlockPages pages(memories_.size());
  pages.put_all(block.whole_at);
  return pages;
}

const Block* Residency::find_block(std::size_t index) const {
  if (index < blocks_.size()) return blocks_[index].get();
  const auto found = ordinary_blocks_.find(index);
  return found == ordinary_blocks_.end() ? nullptr : found->second.get();
}

template <class Visit>
void Residency::each_piece(PageRange pages, Visit visit) {
  for (std::size_t page = pages.first; page < pages.last;) {
    const std::size_t first = page % kPagesPerBlock;
    const std::size_t count = std::min(kPagesPerBlock - first, pages.last - page);
    if (!visit(block_at(page / kPagesPerBlock), first, count)) return;
    page += count;
  }
}

template <class Visit>
void Residency::each_open_block(PageRange pages, Visit visit) {
  each_piece(pages, [&](Block& block, std::size_t first, std::size_t count) {
    open(block);
    return visit(block, page_mask(first, count));
  });
}

template <class Visit>
void Residency::each_mixed_block(PageRange pages, Visit visit) {
  each_piece(pages, [&](Block& block, std::size_t first, std::size_t count) {
    if (place_of(block) >= kHost) return true;
    open(block);
    return visit(block, page_mask(first, count));
  });
}

// ---- touches by kernels

bool Residency::is_whole_at(int location, PageRange pages) {
  for (std::size_t index = pages.first / kPagesPerBlock; index * kPagesPerBlock < pages.last;
       ++index) {
    if (place_of(block_at(index)) != location) return false;
  }
  return true;
}

Status Residency::touch(int device, PageRange pages, const Policy& policy, Access access) {
  Status status = Status::kOk;
  each_open_block(pages, [&](Block& block, const PageMask& mask) {
    status = touch_block(device, block, mask, policy, access);
    return status == Status::kOk;
  });
  return status;
}

Status Residency::touch_block(int device, Block& block, const PageMask& pages, const Policy& policy,
                              Access access) {
  const Status status = policy.read_mostly ? touch_read_mostly(device, block, pages, access)
                                           : touch_single(device, block, pages, policy);
  if (status == Status::kOk && access.write && (block.by_page->discarded & pages).any()) {
    block.by_page->discarded &= ~pages;
    for (int other = 0; other < device_count(); ++other) settle_chunk(other, block);
  }
  return status;
}

// The order of the cases is the modelled driver's: preferred here, nowhere, accessed-by, preferred
// elsewhere, here.
Status Residency::touch_single(int device, Block& block, const PageMask& pages,
                               const Policy& policy) {
  const PageMask missing = pages & ~block.by_page->resident_at(device);
  if (missing.none()) return Status::kOk;
  const bool stays_at_preferred = policy.preferred != kNoLocation && policy.preferred != device &&
                                  can_use_in_place(device, policy.preferred);
  const bool accessed_by = policy.is_accessed_by(device);

  const PageMask present = block.by_page->anywhere();
  PageMask arriving;  // to be made resident here
  PageMask at_preferred;
  if (stays_at_preferred) {
    at_preferred = missing & ~present;
  } else {
    arriving = missing & ~present;
  }
  const PageMask elsewhere = missing & present;
  PageMask remote;  // left where it is
  if (policy.preferred == device) {
    arriving |= elsewhere;
  } else if (accessed_by) {
    remote = elsewhere & usable_in_place(device, block);
    arriving |= elsewhere & ~remote;
  } else if (stays_at_preferred) {
    at_preferred |= elsewhere;
  } else {
    arriving |= elsewhere;
  }

  if (arriving.any()) {
    counters_.fault_pages_device += arriving.count();
    if (const Status status = make_resident(device, block, arriving, Others::kDrop);
        status != Status::kOk) {
      return status;
    }
  }
  if (at_preferred.any()) {
    const PageMask moving = at_preferred & ~block.by_page->resident_at(policy.preferred);
    if (moving.any()) {
      if (const Status status = make_resident(policy.preferred, block, moving, Others::kDrop);
          status != Status::kOk) {
        return status;
      }
    }
    access_remotely(device, block, at_preferred, !accessed_by);
  }
  if (remote.any()) access_remotely(device, block, remote, false);
  return Status::kOk;
}

Status Residency::touch_read_mostly(int device, Block& block, const PageMask& pages,
                                    Access access) {
  const PageMask missing = pages & ~block.by_page->resident_at(device);
  if (missing.any()) {
    counters_.fault_pages_device += missing.count();
    if (const Status status = make_resident(device, block, missing, Others::kKeep);
        status != Status::kOk) {
      return status;
    }
  }
  if (access.write) drop_elsewhere(device, block, pages);
  return Status::kOk;
}

void Residency::access_remotely(int device, Block& block, const PageMask& pages, bool faults) {
  BlockPages::DeviceSide& side = block.by_page->at(device);
  if (faults) counters_.fault_pages_device += (pages & ~side.mapped).count();
  side.mapped |= pages;
  counters_.remote_access_bytes += bytes_of(pages);
}

bool Residency::can_use_in_place(int device, int location) const {
  return location == kHost || location == device || reaches_(device, location);
}

PageMask Residency::usable_in_place(int device, const Block& block) const {
  PageMask pages = block.by_page->host;
  for (int other = 0; other < device_count(); ++other) {
    if (can_use_in_place(device, other)) {
      pages |= block.by_page->devices[static_cast<std::size_t>(other)].resident;
    }
  }
  return pages;
}

// ---- requests by the program

Status Residency::prefetch(int location, PageRange pages, const Policy& policy) {
  Status status = Status::kOk;
  each_piece(pages, [&](Block& block, std::size_t first, std::size_t count) {
    const bool is_whole = count == kPagesPerBlock && !policy.read_mostly;
    if (is_whole && move_whole(location, block)) return true;
    open(block);
    const PageMask mask = page_mask(first, count);
    status =
        make_resident(location, block, mask, policy.read_mostly ? Others::kKeep : Others::kDrop);
    if (status != Status::kOk) return false;
    block.by_page->discarded &= ~mask;
    for (int device = 0; device < device_count(); ++device) settle_chunk(device, block);
    return true;
  });
  return status;
}

void Residency::discard(PageRange pages) {
  collapse(pages);
  each_open_block(pages, [&](Block& block, const PageMask& mask) {
    block.by_page->discarded |= mask & block.by_page->anywhere();
    for (int device = 0; device < device_count(); ++device) settle_chunk(device, block);
    return true;
  });
}

Status Residency::copy_access(int location, PageRange pages, bool write) {
  Status status = Status::kOk;
  each_mixed_block(pages, [&](Block& block, const PageMask& mask) {
    const PageMask nowhere = mask & ~block.by_page->anywhere();
    if (nowhere.any()) {
      if (location == kHost) counters_.fault_pages_host += nowhere.count();
      if (location != kHost) counters_.fault_pages_device += nowhere.count();
      status = make_resident(location, block, nowhere, Others::kDrop);
    }
    if (status != Status::kOk) return false;
    if (write && (block.by_page->discarded & mask).any()) {
      block.by_page->discarded &= ~mask;
      for (int device = 0; device < device_count(); ++device) settle_chunk(device, block);
    }
    return true;
  });
  if (status == Status::kOk && write) collapse(pages);
  return status;
}

void Residency::collapse(PageRange pages, int preferred) {
  each_mixed_block(pages, [&](Block& block, const PageMask& mask) {
    PageMask kept = mask;
    if (preferred == kNoLocation) {
      kept.reset();
    } else {
      kept &= block.by_page->resident_at(preferred);
    }
    for (int location = kHost; location < device_count(); ++location) {
      if (location == preferred) continue;
      PageMask& resident = block.by_page->resident_at(location);
      resident &= ~(mask & kept);
      kept |= resident & mask;
      if (location != kHost) settle_chunk(location, block);
    }
    return true;
  });
}

void Residency::forget(PageRange pages) {
  each_piece(pages, [&](Block& block, std::size_t first, std::size_t count) {
    if (count == kPagesPerBlock) {
      block.whole_at = Block::kNowhere;
      for (int device = 0; device < device_count(); ++device) {
        if (holds_chunk(device, block)) memory(device).move_to(block, ChunkList::kNone);
      }
    } else if (place_of(block) != Block::kNowhere) {
      open(block);
      forget_pages(block, page_mask(first, count));
    }
    return true;
  });
}

void Residency::forget_pages(Block& block, const PageMask& pages) {
  block.by_page->host &= ~pages;
  block.by_page->discarded &= ~pages;
  for (int device = 0; device < device_count(); ++device) {
    BlockPages::DeviceSide& side = block.by_page->at(device);
    side.resident &= ~pages;
    side.mapped &= ~pages;
    if (!holds_chunk(device, block)) continue;
    if (side.resident.none()) {
      memory(device).move_to(block, ChunkList::kNone);
    } else {
      settle_chunk(device, block);
    }
  }
}

void Residency::forget_unmapped(Block& block) {
  if (block.index < blocks_.size()) return;
  const PageMask unmapped = ~mapped_(block.index - blocks_.size());
  if (unmapped.none()) return;
  open(block);
  forget_pages(block, unmapped);
}

void Residency::forget_unmapped() {
  for (auto it = ordinary_blocks_.begin(); it != ordinary_blocks_.end();) {
    Block& block = *it->second;
    forget_unmapped(block);
    bool holds_nothing = place_of(block) == Block::kNowhere;
    for (int device = 0; device < device_count(); ++device) {
      holds_nothing = holds_nothing && !holds_chunk(device, block);
    }
    it = holds_nothing ? ordinary_blocks_.erase(it) : std::next(it);
  }
}

// ---- moving

Status Residency::make_resident(int location, Block& block, const PageMask& pages, Others others) {
  if (location != kHost) {
    if (!hold_chunk(location, block)) return Status::kOutOfMemory;
    memory(location).move_to(block, ChunkList::kUsed);
  }
  const PageMask missing = pages & ~block.by_page->resident_at(location);
  count_arrival(location, arrival_of(*block.by_page, missing));
  block.by_page->resident_at(location) |= missing;
  for (BlockPages::DeviceSide& side : block.by_page->devices) side.mapped &= ~missing;
  if (others == Others::kDrop) drop_elsewhere(location, block, pages);
  if (location != kHost)
    settle_chunk(location, block);  // a read leaves a discarded block discarded
  return Status::kOk;
}

// The same for all pages of a block that are at one place, or nowhere, which is known without a
// look at each. False, and nothing moved, where they are not.
bool Residency::move_whole(int location, Block& block) {
  const int from = place_of(block);
  if (from == kNoLocation) return false;
  if (location != kHost) {
    if (!hold_chunk(location, block)) return false;
    memory(location).move_to(block, ChunkList::kUsed);
  }
  if (from == location) return true;
  block.whole_at = location;
  count_arrival(location, {.populated_bytes = from == Block::kNowhere ? kBlockBytes : 0,
                           .from_host_bytes = from == kHost ? kBlockBytes : 0,
                           .from_devices_bytes = from >= 0 ? kBlockBytes : 0});
  if (from >= 0) memory(from).move_to(block, ChunkList::kUnused);
  return true;
}

Residency::Arrival Residency::arrival_of(const BlockPages& pages, const PageMask& missing) {
  if (missing.none()) return {};
  const PageMask present = pages.anywhere();
  const PageMask copied = missing & present & ~pages.discarded;
  const std::size_t from_host = bytes_of(copied & pages.host);
  return {bytes_of(missing & ~present), from_host, bytes_of(copied) - from_host};
}

void Residency::count_arrival(int location, const Arrival& arrival) {
  traffic_bytes_ += arrival.from_host_bytes + arrival.from_devices_bytes;
  if (location == kHost) {
    counters_.populated_bytes_host += arrival.populated_bytes;
    counters_.migrated_bytes_to_host += arrival.from_devices_bytes;
  } else {
    counters_.populated_bytes_device += arrival.populated_bytes;
    counters_.migrated_bytes_to_device += arrival.from_host_bytes;
    counters_.migrated_bytes_between_devices += arrival.from_devices_bytes;
  }
}

void Residency::drop_elsewhere(int location, Block& block, const PageMask& pages) {
  for (int other = kHost; other < device_count(); ++other) {
    if (other == location) continue;
    block.by_page->resident_at(other) &= ~pages;
    if (other != kHost) settle_chunk(other, block);
  }
}

// The list that a held chunk belongs on.
ChunkList Residency::wanted_list(const BlockPages& pages, int device) {
  if (pages.at(device).resident.none()) return ChunkList::kUnused;
  return pages.discarded.all() ? ChunkList::kDiscarded : ChunkList::kUsed;
}

// Puts a held chunk on the list that its block's masks call for; one that is there already keeps
// its place.
void Residency::settle_chunk(int device, Block& block) {
  if (!holds_chunk(device, block)) return;
  const ChunkList wanted = wanted_list(*block.by_page, device);
  if (list_of(device, block) != wanted) memory(device).move_to(block, wanted);
}

bool Residency::hold_chunk(int device, Block& block) {
  return holds_chunk(device, block) || make_room(device, kBlockBytes);
}

bool Residency::make_room(int device, std::size_t bytes) {
  DeviceMemory& target = memory(device);
  if (!target.could_hold(bytes)) return false;
  while (target.free_bytes() < bytes) evict(device, *target.victim());
  return true;
}

// Discarded pages and those with a copy elsewhere cost no transfer; all end up on the host.
void Residency::evict(int device, Block& block) {
  forget_unmapped(block);
  if (!holds_chunk(device, block)) return;
  open(block);
  PageMask& resident = block.by_page->resident_at(device);
  const std::size_t copied = bytes_of(resident & ~block.by_page->host & ~block.by_page->discarded);
  ++counters_.evicted_chunks;
  counters_.evicted_bytes += copied;
  traffic_bytes_ += copied;
  block.by_page->host |= resident;
  resident.reset();
  memory(device).move_to(block, ChunkList::kNone);
}

// ---- questions

std::size_t Residency::resident_pages(int location, std::size_t page, std::size_t count) const {
  std::size_t found = 0;
  for (const std::size_t last = page + count; page < last;) {
    const std::size_t first = page % kPagesPerBlock;
    const std::size_t here = std::min(kPagesPerBlock - first, last - page);
    if (const Block* block = find_block(page / kPagesPerBlock)) {
      found += (resident_of(*block, location) & page_mask(first, here)).count();
    }
    page += here;
  }
  return found;
}

bool Residency::is_resident(int location, std::size_t page) const {
  return resident_pages(location, page, 1) != 0;
}

std::string Residency::broken_invariant() const {
  std::vector<std::size_t> held_bytes(memories_.size());
  std::vector<const Block*> blocks;
  for (const auto& block : blocks_) {
    if (block != nullptr) blocks.push_back(block.get());
  }
  for (const auto& [index, block] : ordinary_blocks_) blocks.push_back(block.get());
  for (const Block* block : blocks) {
    const std::string name = "block " + std::to_string(block->index);
    BlockPages pages = pages_of(*block);
    if ((pages.discarded & ~pages.anywhere()).any())
      return name + " has discarded pages that are nowhere";
    if (block->whole_at == kNoLocation && place_of(pages) != kNoLocation)
      return name + " is said to have pages that differ";
    for (int device = 0; device < device_count(); ++device) {
      const BlockPages::DeviceSide& side = pages.at(device);
      if ((side.mapped & side.resident).any())
        return name + " maps pages from afar that are resident";
      if (!holds_chunk(device, *block)) {
        if (side.resident.any()) return name + " has resident pages without a chunk";
        continue;
      }
      held_bytes[static_cast<std::size_t>(device)] += kBlockBytes;
      if (list_of(device, *block) != wanted_list(pages, device))
        return name + " has its chunk on the wrong list";
    }
  }
  for (std::size_t device = 0; device < memories_.size(); ++device) {
    if (held_bytes[device] != memories_[device].managed_bytes())
      return "chunks held and chunks charged differ";
  }
  return {};
}

std::uint64_t Residency::take_traffic_bytes() {
  return std::exchange(traffic_bytes_, 0);
}

}  // namespace uvmsim
