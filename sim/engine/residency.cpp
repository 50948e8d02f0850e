#include "sim/engine/residency.hpp"

#include <algorithm>
#include <utility>

#include "sim/engine/fault_growth.hpp"
#include "sim/engine/units.hpp"

namespace uvmsim {
namespace {

// The bytes that the access counters count as one remote access.
constexpr std::size_t kCountedAccessBytes = 128;

}  // namespace

Residency::Residency(std::size_t arena_blocks, std::vector<DeviceMemory>& memories,
                     HostMemory& host, uvmsim_counters& counters, Reaches reaches, Mapped mapped,
                     const MachineRules& rules)
    : memories_(memories),
      counters_(counters),
      reaches_(std::move(reaches)),
      rules_(rules),
      blocks_(arena_blocks, memories.size()),
      mover_(blocks_, memories, host, counters, std::move(mapped), rules.memory.ordinary_by_page),
      thrashing_(rules.thrashing) {}

// ---- touches by kernels

bool Residency::is_whole_at(int location, PageRange pages) {
  const int place = placed_at(location);
  for (std::size_t index = pages.first / kPagesPerBlock; index * kPagesPerBlock < pages.last;
       ++index) {
    if (blocks_.at(index).place() != place) return false;
  }
  return true;
}

Status Residency::touch(int device, PageRange pages, PageRange range, const Policy& policy,
                        Access access) {
  Status status = Status::kOk;
  blocks_.each_open(pages, [&](Block& block, const PageMask& mask) {
    const std::size_t base = block.index * kPagesPerBlock;
    const std::size_t first = std::max(range.first, base);
    const std::size_t last = std::min(range.last, base + kPagesPerBlock);
    const Fault fault{device, page_mask(first - base, last - first), policy, access};
    status = touch_block(fault, block, mask);
    return status == Status::kOk;
  });
  return status;
}

Status Residency::touch_block(const Fault& fault, Block& block, const PageMask& pages) {
  if (rules_.memory.shares_host) return touch_shared_memory(block, pages);
  const Status status = fault.policy.read_mostly ? touch_read_mostly(fault, block, pages)
                                                 : touch_single(fault, block, pages);
  if (status == Status::kOk && fault.access.write && (block.by_page->discarded & pages).any()) {
    block.by_page->discarded &= ~pages;
    mover_.settle_chunks(block);
  }
  return status;
}

// Serves a touch by a device that shares the host's memory.
Status Residency::touch_shared_memory(Block& block, const PageMask& pages) {
  const PageMask missing = pages & ~block.by_page->host;
  if (missing.none()) return Status::kOk;
  counters_.fault_pages_device += missing.count();
  mover_.work().count_faults(0, missing.count());
  return mover_.make_resident(kHost, block, missing, Others::kDrop);
}

// Tests the cases in the modelled driver's order: this device is preferred; the page is nowhere;
// accessed-by; another location is preferred; all other pages. touch_read_mostly() has handled read
// duplication before. Pages pinned because of thrashing were removed before.
Residency::Destinations Residency::destinations(const Fault& fault, const Block& block,
                                                const PageMask& missing) const {
  const Policy& policy = fault.policy;
  const PageMask nowhere = missing & ~block.by_page->anywhere();
  const PageMask elsewhere = missing & ~nowhere;
  const bool stays_at_preferred = policy.preferred != kNoLocation &&
                                  policy.preferred != fault.device &&
                                  can_use_in_place(fault.device, policy.preferred);
  Destinations to;
  (stays_at_preferred ? to.at_preferred : to.here) = nowhere;
  if (policy.preferred == fault.device) {
    to.here |= elsewhere;
    return to;
  }
  if (policy.is_accessed_by(fault.device)) {
    to.in_place = elsewhere & usable_in_place(fault.device, block);
  } else if (rules_.memory.uses_host_pages) {
    to.in_place = elsewhere & block.by_page->host &
                  (blocks_.is_ordinary(block) ? ~PageMask{} : block.evicted);
  }
  (stays_at_preferred && !policy.is_accessed_by(fault.device) ? to.at_preferred : to.here) |=
      elsewhere & ~to.in_place;
  return to;
}

Status Residency::touch_single(const Fault& fault, Block& block, const PageMask& pages) {
  PageMask missing = pages & ~block.by_page->resident_at(fault.device);
  if (missing.none()) return Status::kOk;
  if (fault.policy.preferred != fault.device) {
    if (const Status status = pin(fault, block, &missing); status != Status::kOk) return status;
  }
  const Destinations to = destinations(fault, block, missing);
  const bool accessed_by = fault.policy.is_accessed_by(fault.device);
  if (to.here.any()) {
    const PageMask others = fault.range & ~block.by_page->resident_at(fault.device);
    const PageMask eligible = destinations(fault, block, others).here;
    const Status status =
        bring_by_faults(fault, fault.device, block, to.here, eligible, Others::kDrop);
    if (status != Status::kOk) return status;
  }
  if (to.at_preferred.any()) {
    const PageMask moving = to.at_preferred & ~block.by_page->resident_at(fault.policy.preferred);
    if (moving.any()) {
      const Status status =
          mover_.make_resident(fault.policy.preferred, block, moving, Others::kDrop);
      if (status != Status::kOk) return status;
    }
    use_remotely(fault.device, block, to.at_preferred, !accessed_by);
  }
  if (to.in_place.any()) {
    use_remotely(fault.device, block, to.in_place, false);
    return count_accesses(fault.device, block, to.in_place);
  }
  return Status::kOk;
}

Status Residency::touch_read_mostly(const Fault& fault, Block& block, const PageMask& pages) {
  const PageMask missing = pages & ~block.by_page->resident_at(fault.device);
  if (missing.any()) {
    const PageMask eligible = fault.range & ~block.by_page->resident_at(fault.device);
    const Status status =
        bring_by_faults(fault, fault.device, block, missing, eligible, Others::kKeep);
    if (status != Status::kOk) return status;
  }
  if (fault.access.write) mover_.drop_elsewhere(fault.device, block, pages);
  return Status::kOk;
}

bool Residency::fills_block(const Fault& fault, const Block& block) const {
  return rules_.faults.first_touch_fills_block && fault.policy.preferred == fault.device &&
         block.by_page->anywhere().none();
}

// A kernel has only a few pending faults in a block. The driver services these faults and migrates
// further pages with them. The next faults are for pages that are still missing.
Status Residency::bring_by_faults(const Fault& fault, int location, Block& block, PageMask missing,
                                  const PageMask& eligible, Others others) {
  counters_.fault_pages_device += missing.count();
  const bool fills = fills_block(fault, block);
  for (std::size_t turn = 0; missing.any(); ++turn) {
    const PageMask faulted = first_pages(missing, rules_.faults.faults_at_once);
    const PageMask& resident = block.by_page->resident_at(location);
    const PageMask arriving =
        fills ? eligible | faulted : grow_faults(faulted, resident, eligible, rules_.faults);
    mover_.work().count_faults(turn, faulted.count());
    counters_.faults_device += faulted.count();
    const PageMask migrated = arriving & block.by_page->anywhere() & ~resident;
    const Status status = mover_.make_resident(location, block, arriving & ~resident, others);
    if (status != Status::kOk) return status;
    if (others == Others::kDrop)
      thrashing_.note_migration(block.index, migrated, fault.access.at_ns);
    counters_.speculative_pages_device += (arriving & ~missing).count();
    missing &= ~block.by_page->resident_at(location);
  }
  return Status::kOk;
}

// Serves thrashing pages. The device sleeps before it gets throttled pages, and uses pinned pages
// in place. Pinned pages that the device cannot access move to the host, which all devices can
// access.
Status Residency::pin(const Fault& fault, Block& block, PageMask* missing) {
  const PageMask elsewhere = *missing & block.by_page->anywhere();
  const Thrashing::Answer answer = thrashing_.answer(block.index, elsewhere, fault.access.at_ns);
  if (answer.throttled.any()) {
    ++counters_.throttles_device;
    ++mover_.work().throttles;
  }
  if (answer.pinned.none()) return Status::kOk;
  *missing &= ~answer.pinned;
  const PageMask leaving = answer.pinned & ~usable_in_place(fault.device, block);
  if (leaving.any()) {
    const Status status = mover_.make_resident(kHost, block, leaving, Others::kDrop);
    if (status != Status::kOk) return status;
  }
  counters_.pinned_pages_device += answer.pinned.count();
  use_remotely(fault.device, block, answer.pinned, true);
  return Status::kOk;
}

void Residency::use_remotely(int device, Block& block, const PageMask& pages, bool faults) {
  BlockPages::DeviceSide& side = block.by_page->at(device);
  const PageMask unmapped = pages & ~side.mapped;
  if (faults && unmapped.any()) {
    counters_.fault_pages_device += unmapped.count();
    counters_.faults_device += unmapped.count();
    mover_.work().count_faults(0, unmapped.count());
  }
  side.mapped |= pages;
  counters_.remote_access_bytes += bytes_of(pages);
  mover_.work().remote_bytes += bytes_of(pages);
}

// Counts the device's remote accesses, if the machine has access counters. At the threshold, the
// block's pages on the host migrate to the device.
Status Residency::count_accesses(int device, Block& block, const PageMask& pages) {
  const std::uint64_t threshold = rules_.memory.access_counter_threshold;
  if (threshold == 0) return Status::kOk;
  std::uint64_t& accesses = block.chunk(device).remote_accesses;
  accesses += bytes_of(pages) / kCountedAccessBytes;
  if (accesses < threshold) return Status::kOk;
  accesses = 0;
  return mover_.make_resident(device, block, block.by_page->host, Others::kDrop);
}

bool Residency::can_use_in_place(int device, int location) const {
  return location == kHost || location == device || reaches_(device, location);
}

PageMask Residency::usable_in_place(int device, const Block& block) const {
  PageMask pages = block.by_page->host;
  for (int other = 0; other < device_count(); ++other) {
    if (can_use_in_place(device, other)) pages |= block.by_page->at(other).resident;
  }
  return pages;
}

// ---- touches by the host

// The host can access its own pages, and pages of devices over a coherent link. Other pages migrate
// to the host by a fault, as pages migrate to a device.
Status Residency::touch_by_host(std::size_t page, PageRange range, const Policy& policy,
                                Access access, PageRange* out_mapped) {
  Block& block = blocks_.at(page / kPagesPerBlock);
  block.open();
  const std::size_t base = block.index * kPagesPerBlock;
  const std::size_t first = std::max(range.first, base);
  const std::size_t last = std::min(range.last, base + kPagesPerBlock);
  const PageMask eligible = page_mask(first - base, last - first);
  const PageMask faulted = page_mask(page - base, 1);
  PageMask reached = block.by_page->host;
  if (rules_.memory.uses_host_pages) reached = block.by_page->anywhere();
  const PageMask missing = faulted & ~reached;
  if (missing.any()) {
    const PageMask arriving = grow_faults(faulted, reached, eligible, rules_.faults) & ~reached;
    if (const Status status = bring_to_host(block, arriving, policy, access);
        status != Status::kOk) {
      return status;
    }
    reached |= arriving;
  }
  if (access.write) {
    if (policy.read_mostly) mover_.drop_elsewhere(kHost, block, faulted);
    block.by_page->discarded &= ~faulted;
    mover_.settle_chunks(block);
  }
  block.host_mapped |= faulted;
  *out_mapped = {page, page + 1};
  const auto is_mappable = [&](std::size_t number) {
    return reached.test(number - base) && eligible.test(number - base);
  };
  // A store to a read-only duplicate must fault again, so map only this page.
  if (policy.read_mostly) return Status::kOk;
  const std::size_t group = rules_.faults.granularity_pages;
  const std::size_t group_first = round_down(page, group);
  while (out_mapped->first > std::max(group_first, first) && is_mappable(out_mapped->first - 1))
    --out_mapped->first;
  while (out_mapped->last < std::min(group_first + group, last) && is_mappable(out_mapped->last))
    ++out_mapped->last;
  block.host_mapped |= page_mask(out_mapped->first - base, out_mapped->last - out_mapped->first);
  return Status::kOk;
}

Status Residency::bring_to_host(Block& block, const PageMask& arriving, const Policy& policy,
                                Access access) {
  const PageMask elsewhere = arriving & block.by_page->anywhere();
  counters_.fault_pages_host += arriving.count();
  mover_.work().count_faults(0, 1);
  if (thrashing_.answer(block.index, elsewhere, access.at_ns).throttled.any())
    ++mover_.work().throttles;
  const bool keeps = policy.read_mostly && !access.write;
  const Status status =
      mover_.make_resident(kHost, block, arriving, keeps ? Others::kKeep : Others::kDrop);
  if (status == Status::kOk && !keeps)
    thrashing_.note_migration(block.index, elsewhere, access.at_ns);
  return status;
}

// ---- requests by the program

void Residency::advise(SpanMap<Policy>* policies, std::size_t base, PageRange pages, Advice advice,
                       int location) {
  const std::size_t first = pages.first - base;
  const std::size_t last = pages.last - base;
  policies->update(first, last,
                   [&](const Policy& policy) { return advised(policy, advice, location); });
  if (advice == Advice::kSetReadMostly) unmap_remote(pages);
  if (advice == Advice::kSetPreferredLocation && location != kHost) unmap_remote(pages, location);
  if (advice != Advice::kUnsetReadMostly) return;
  policies->visit(first, last, [&](std::size_t begin, std::size_t end, const Policy& policy) {
    collapse({base + begin, base + end}, policy.preferred);
  });
}

Status Residency::prefetch(int location, PageRange pages, const Policy& policy) {
  location = placed_at(location);
  const bool keeps_copies = policy.read_mostly && !rules_.memory.shares_host;
  Status status = Status::kOk;
  blocks_.each_piece(pages, [&](Block& block, std::size_t first, std::size_t count) {
    const PageMask mask = page_mask(first, count);
    thrashing_.forget(block.index, mask);
    ++mover_.work().moved_blocks;
    const bool is_whole = count == kPagesPerBlock && !keeps_copies;
    if (is_whole && mover_.move_whole(location, block)) return true;
    block.open();
    status =
        mover_.make_resident(location, block, mask, keeps_copies ? Others::kKeep : Others::kDrop);
    if (status != Status::kOk) return false;
    block.by_page->discarded &= ~mask;
    mover_.settle_chunks(block);
    return true;
  });
  return status;
}

void Residency::discard(PageRange pages) {
  if (rules_.memory.shares_host) return;
  collapse(pages);
  blocks_.each_open(pages, [&](Block& block, const PageMask& mask) {
    block.by_page->discarded |= mask & block.by_page->anywhere();
    thrashing_.forget(block.index, mask);
    mover_.settle_chunks(block);
    return true;
  });
}

Status Residency::copy_access(int location, PageRange pages, bool write) {
  location = placed_at(location);
  Status status = Status::kOk;
  blocks_.each_mixed(pages, [&](Block& block, const PageMask& mask) {
    const PageMask nowhere = mask & ~block.by_page->anywhere();
    if (nowhere.any()) {
      (location == kHost ? counters_.fault_pages_host : counters_.fault_pages_device) +=
          nowhere.count();
      status = mover_.make_resident(location, block, nowhere, Others::kDrop);
    }
    if (status != Status::kOk) return false;
    if (write && (block.by_page->discarded & mask).any()) {
      block.by_page->discarded &= ~mask;
      mover_.settle_chunks(block);
    }
    return true;
  });
  if (status == Status::kOk && write) collapse(pages);
  return status;
}

void Residency::collapse(PageRange pages, int preferred) {
  blocks_.each_mixed(pages, [&](Block& block, const PageMask& mask) {
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
      if (location != kHost) mover_.settle_chunk(location, block);
    }
    return true;
  });
}

void Residency::unmap_remote(PageRange pages, int device) {
  blocks_.each_mixed(pages, [&](Block& block, const PageMask& mask) {
    for (int other = 0; other < device_count(); ++other) {
      if (device == kNoLocation || device == other) block.by_page->at(other).mapped &= ~mask;
    }
    return true;
  });
}

void Residency::forget(PageRange pages) {
  blocks_.each_piece(pages, [&](Block& block, std::size_t first, std::size_t count) {
    thrashing_.forget(block.index, page_mask(first, count));
    if (count == kPagesPerBlock) {
      mover_.drop_whole(block);
    } else {
      mover_.drop(block, page_mask(first, count));
    }
    return true;
  });
}

// ---- queries

std::uint64_t Residency::populated_blocks(PageRange pages) const {
  std::uint64_t count = 0;
  for (std::size_t index = pages.first / kPagesPerBlock; index * kPagesPerBlock < pages.last;
       ++index) {
    const Block* block = blocks_.find(index);
    if (block != nullptr && block->is_populated) ++count;
  }
  return count;
}

std::size_t Residency::resident_pages(int location, std::size_t page, std::size_t count) const {
  std::size_t found = 0;
  for (const std::size_t last = page + count; page < last;) {
    const std::size_t first = page % kPagesPerBlock;
    const std::size_t here = std::min(kPagesPerBlock - first, last - page);
    if (const Block* block = blocks_.find(page / kPagesPerBlock)) {
      found += (block->resident_at(location) & page_mask(first, here)).count();
    }
    page += here;
  }
  return found;
}

}  // namespace uvmsim
