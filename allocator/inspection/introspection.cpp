#include "allocator/inspection/introspection.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "allocator/base/machine_memory.hpp"
#include "allocator/state/charges.hpp"

namespace uvm {

bool Introspection::has_taken(const void* address) const {
  const HeapGuard heap(state_);
  return std::any_of(heap->spans.spans().begin(), heap->spans.spans().end(), [&](const auto& span) {
    return address >= span->raw && address < span->base + span->size_bytes;
  });
}

std::optional<BlockDescription> Introspection::find(const void* address) const {
  const HeapGuard heap(state_);
  const Block* block = heap->pools.directory().find(address);
  if (block == nullptr) return std::nullopt;
  const StreamKey& key = heap->pools.at(block->pool).key;
  BlockDescription out;
  out.base = block->address();
  out.size_bytes = block->size_bytes();
  out.facade = key.facade;
  out.device = key.device;
  out.stream = key.stream;
  out.private_pool = key.program_pool();
  out.live = block->now() == BlockState::kLive;
  out.movable = block->kind != BlockKind::kSmall && block->size_bytes() >= kPageGranularBytes;
  if (out.live) {
    out.requested_bytes = block->requested_bytes();
    out.location = block->use.location();
    out.exported = block->exported || heap->private_pools.is_captured(key.device, key.private_pool);
    out.references = block->real.references;
    out.used_by_host = is_used_by_host(heap, *block);
    const BlockSideState* side_state =
        block->has_no_side_state ? nullptr : heap->pools.side_states().find(block);
    out.pinned = side_state != nullptr && side_state->pinned ? *side_state->pinned
                                                             : key.facade == Facade::kPinned;
    out.waits_when_freed = key.facade == Facade::kDevice && !block->has_no_side_state &&
                           fenced_.needs_fence(heap, *block, heap->pools.at(block->pool));
  }
  return out;
}

std::size_t Introspection::free_bytes(int device, const MemoryFigures& driver) const {
  machine_.check_device(device);
  const bool integrated = machine_.device(device).capabilities.integrated;
  auto left = [](std::size_t limit, std::size_t held) { return limit - std::min(held, limit); };
  MemoryFigures figures = driver;
  std::size_t allowed_bytes = 0;
  {
    const HeapGuard heap(state_);
    // The driver also counts as used, until it needs their memory, discarded pages and pages on the
    // device that no block of this device uses.
    const std::size_t used_bytes = heap->held_bytes(Facade::kDevice, device);
    const std::size_t known_bytes = heap->ledger.bytes_at(Place::device(device)) +
                                    heap->ledger.discarded_bytes_at(Place::device(device));
    std::size_t& foreign_bytes = heap->foreign_bytes[static_cast<std::size_t>(device)];
    foreign_bytes =
        std::min(foreign_bytes, left(left(driver.total_bytes, driver.free_bytes), known_bytes));
    const std::size_t most_bytes = left(driver.total_bytes, used_bytes + foreign_bytes);
    if (!integrated && driver.free_bytes < most_bytes) {
      figures.free_bytes = std::min(most_bytes, driver.free_bytes + unused_bytes(heap, device));
    }
    allowed_bytes =
        std::min(left(heap->budget_bytes, heap->used_bytes()),
                 left(machine_.configuration.device_budget_bytes.value_or(SIZE_MAX), used_bytes));
  }
  return obtainable_bytes(figures, integrated, integrated ? available_host_bytes() : 0,
                          allowed_bytes);
}

// Returns the most bytes that the driver may count on the device although this allocator counts
// them on another place, or nowhere.
std::size_t Introspection::unused_bytes(const LockedHeap& heap, int device) {
  const Place place = Place::device(device);
  std::size_t bytes = heap->ledger.most_bytes_at(place);
  // Blocks cover all pages of pools. A page counts in the pool where the block at its start counts.
  const auto visit = [&](const Block& block, PoolIndex counts_in, PlaceSet used_at) {
    const std::uintptr_t begin = round_up(address_of(block.address()), kPageBytes);
    const std::uintptr_t end = round_up(address_of(block.end()), kPageBytes);
    if (begin == end) return;
    const std::size_t there_bytes =
        heap->ledger.most_bytes_at(reinterpret_cast<const void*>(begin), end - begin, place);
    const StreamKey& key = heap->pools.at(counts_in).key;
    if (key.facade == Facade::kDevice && key.device == device) {
      bytes -= there_bytes;
    } else if (used_at.has(place)) {
      bytes += end - begin - there_bytes;  // a kernel on the device may have read the whole block
    }
  };
  for (const auto& span : heap->spans.spans()) {
    heap->pools.directory().each_block(
        *span,
        [&](const Block& block) {
          if (block.kind == BlockKind::kSmall) return;
          if (block.now() == BlockState::kLive) {
            visit(block, Charges::pool_of(heap, block), Charges::places_of(heap, block));
          } else {
            visit(block, heap->pools.directory().owning_pool_of(block), {});
          }
        },
        // Uses of small blocks are not recorded.
        [&](const PageBlock& run) { visit(run, run.owning_pool, PlaceSet(place)); });
  }
  return bytes;
}

std::size_t Introspection::budget_bytes() const {
  const HeapGuard heap(state_);
  return heap->budget_bytes;
}

Statistics Introspection::statistics() const {
  ThreadCaches::StopTheWorld stopped(caches_);
  caches_.aggregate();
  const HeapGuard heap(state_);
  return heap->statistics.all(caches_, heap->pools, heap->spans);
}

Figures Introspection::figures() const {
  ThreadCaches::StopTheWorld stopped(caches_);
  caches_.aggregate();
  const HeapGuard heap(state_);
  return machine_.figure_store.read([&](std::size_t place)
                                        UVM_REQUIRES(caches_) { return caches_.sum(place); });
}

std::vector<SegmentDescription> Introspection::segments() const {
  ThreadCaches::StopTheWorld stopped(caches_);
  const HeapGuard heap(state_);
  return describe_segments(heap->spans, heap->pools,
                           [&](const Block& block) { return Charges::pool_of(heap, block); });
}

void Introspection::check_invariants() const {
  ThreadCaches::StopTheWorld stopped(caches_);
  const HeapGuard heap(state_);
  heap->pools.check_invariants(heap->spans.spans());
}

// A live plan moves pages without recording this in the ledger.
std::vector<Place> Introspection::believed_places(const void* address,
                                                  std::size_t size_bytes) const {
  std::vector<Place> places;
  {
    const HeapGuard heap(state_);
    places = heap->ledger.places_of(address, size_bytes);
  }
  live_.correct_places(address, &places);
  return places;
}

std::map<Place, std::size_t> Introspection::residency(const void* address,
                                                      std::size_t size_bytes) const {
  std::map<Place, std::size_t> bytes;
  {
    const HeapGuard heap(state_);
    const Block* block = heap->pools.directory().find(address);
    if (size_bytes == 0 || block == nullptr) return bytes;
    size_bytes = std::min(
        size_bytes, static_cast<std::size_t>(block->end() - static_cast<const char*>(address)));
  }
  for (const Place place : believed_places(address, size_bytes)) bytes[place] += kPageBytes;
  return bytes;
}

DeviceResidency Introspection::device_residency(int device) const {
  machine_.check_device(device);
  std::vector<std::pair<const char*, std::size_t>> spans;
  {
    const HeapGuard heap(state_);
    for (const auto& span : heap->spans.spans()) {
      if (span->touched_bytes != 0) spans.emplace_back(span->base, span->size_bytes / kPageBytes);
    }
  }
  const auto count_here = [device](const std::vector<Place>& places) {
    return static_cast<std::size_t>(std::ranges::count(places, Place::device(device))) * kPageBytes;
  };
  DeviceResidency found;
  for (const auto& [base, pages] : spans)
    found.believed_bytes += count_here(believed_places(base, pages * kPageBytes));
  if (!machine_.device(device).capabilities.finds_pages || machine_.in_forked_child()) return found;
  std::size_t real_bytes = 0;
  for (const auto& [base, pages] : spans) {
    std::vector<Place> places(pages);
    // The driver refuses a span that was freed meanwhile, and every span while the process ends.
    const RuntimeStatus status =
        machine_.runtime.find_pages(device, base, pages * kPageBytes, kPageBytes, places.data());
    if (status.error == RuntimeError::kNotUsable) return found;
    if (status.ok()) real_bytes += count_here(places);
  }
  found.real_bytes = real_bytes;
  return found;
}

std::map<Place, std::size_t> Introspection::exact_residency(const void* address,
                                                            std::size_t size_bytes) const {
  constexpr std::size_t kPartBytes = std::size_t{64} << 10;
  machine_.require_device();
  std::map<Place, std::size_t> bytes;
  int device = 0;
  {
    const HeapGuard heap(state_);
    const Block* block = heap->pools.directory().find(address);
    if (size_bytes == 0 || block == nullptr) return bytes;
    size_bytes = std::min(
        size_bytes, static_cast<std::size_t>(block->end() - static_cast<const char*>(address)));
    device = heap->pools.at(block->pool).key.device;
  }
  const std::size_t part_bytes = std::min(size_bytes, kPartBytes);
  std::vector<Place> places((size_bytes + part_bytes - 1) / part_bytes);
  const RuntimeStatus status =
      machine_.runtime.find_pages(device, address, size_bytes, part_bytes, places.data());
  if (status.error == RuntimeError::kNotSupported)
    throw std::runtime_error(
        "uvmalloc: exact residency is not known: a driver reports it from CUDA 13.4 on, and this "
        "one does not");
  if (!status.ok()) throw std::runtime_error("uvmalloc: exact residency: " + status.text());
  for (std::size_t part = 0; part < places.size(); ++part)
    bytes[places[part]] += std::min(part_bytes, size_bytes - part * part_bytes);
  return bytes;
}

bool Introspection::is_used_by_host(const LockedHeap& heap, const Block& block) {
  return block.now() == BlockState::kLive && Charges::places_of(heap, block).has(Place::host());
}

}  // namespace uvm
