#include "sim/engine/placements.hpp"

#include "sim/engine/machine_state.hpp"
#include "sim/engine/units.hpp"

namespace uvmsim {
namespace {

// Prefetches a range that placed_record() accepts.
Status prefetch_pages(MachineState& state, MemoryRange range, int location) {
  AllocationRecord* record = state.placed_record(range);
  const PageRange pages = state.pages_of(*record, range);
  const std::size_t base = state.first_page_of(*record);
  Status status = Status::kOk;
  record->placement->policy.visit(pages.first - base, pages.last - base,
                                  [&](std::size_t first, std::size_t last, const Policy& policy) {
                                    if (status != Status::kOk) return;
                                    status = state.residency.prefetch(location,
                                                                      {base + first, base + last},
                                                                      record->in_force(policy));
                                  });
  record->placement->last_prefetch.update(
      pages.first - base, pages.last - base,
      [&](Placement::Target) { return Placement::Target{location}; });
  return status;
}

// Returns the number of blocks with populated pages.
std::uint64_t discard_pages(MachineState& state, MemoryRange range) {
  const AllocationRecord* record = state.placed_record(range);
  const std::size_t base = state.first_page_of(*record);
  const std::size_t offset = range.start() - record->allocation.address;
  const PageRange whole{base + round_up(offset, kPageBytes) / kPageBytes,
                        base + (offset + range.size_bytes) / kPageBytes};
  if (whole.first >= whole.last) return 0;
  const std::uint64_t blocks = state.residency.populated_blocks(whole);
  if (record->allocation.kind == MemoryKind::kManaged) state.residency.discard(whole);
  return blocks;
}

}  // namespace

Status Placements::advise(MemoryRange range, Advice advice, int location) {
  if (location != kHost && !shared_.settings().has_device(location)) return Status::kInvalidDevice;
  const auto state = shared_.lock();
  AllocationRecord* record = state->placed_record(range);
  if (record == nullptr) return Status::kInvalidValue;
  ++state->counters.advice_calls;
  const PageRange pages = state->pages_of(*record, range);
  state->timeline.run_exclusively(state->costs.advice_ns(state->residency.populated_blocks(pages)));
  state->residency.advise(&record->placement->policy, state->first_page_of(*record), pages, advice,
                          location);
  return Status::kOk;
}

Status Placements::prefetch(int device, StreamHandle stream, MemoryRange range, int location) {
  return move_batch(device, stream, BatchKind::kPrefetch, {{range, location}});
}

Status Placements::discard(int device, StreamHandle stream, MemoryRange range) {
  return move_batch(device, stream, BatchKind::kDiscard, {{range}});
}

Status Placements::move_batch(int device, StreamHandle stream, BatchKind kind,
                              const std::vector<RangeMove>& moves) {
  const bool prefetches = kind != BatchKind::kDiscard;
  const bool discards = kind != BatchKind::kPrefetch;
  for (const RangeMove& move : moves) {
    if (prefetches && move.location != kHost && !shared_.settings().has_device(move.location))
      return Status::kInvalidDevice;
  }
  const auto state = shared_.lock();
  Stream* target = state->timeline.find_stream(device, stream);
  if (target == nullptr) return Status::kInvalidHandle;
  for (const RangeMove& move : moves) {
    if (state->placed_record(move.range) == nullptr) return Status::kInvalidValue;
  }
  // A graph has no nodes for prefetches and discards, so the call is refused while the stream is
  // being captured.
  if (const auto outcome = state->captures.record_or_refuse(*target, NodeKind::kEmpty, nullptr))
    return *outcome;
  if (prefetches) ++state->counters.prefetch_calls;
  if (discards) ++state->counters.discard_calls;
  state->timeline.advance(state->call_ns());
  Status status = Status::kOk;
  std::vector<Phases> parts;
  for (const RangeMove& move : moves) {
    const std::uint64_t blocks = discards ? discard_pages(*state, move.range) : 0;
    if (prefetches) status = prefetch_pages(*state, move.range, move.location);
    Phases& part = parts.emplace_back(state->costs.phases(state->residency.take_work()));
    part.driver_ns += state->costs.discard_phases(blocks).driver_ns;
    if (status != Status::kOk) break;
  }
  state->timeline.submit_batch(*target, parts);
  return status;
}

bool Placements::accept(MemoryRange range) {
  return shared_.lock()->placed_record(range) != nullptr;
}

Status Placements::describe(MemoryRange range, RangePlacement* out) {
  const auto state = shared_.lock();
  const AllocationRecord* record = state->placed_record(range);
  if (record == nullptr) return Status::kInvalidValue;
  const PageRange pages = state->pages_of(*record, range);
  const std::size_t base = state->first_page_of(*record);
  bool first_policy = true;
  record->placement->policy.visit(
      pages.first - base, pages.last - base, [&](std::size_t, std::size_t, const Policy& policy) {
        if (first_policy) {
          *out = {policy.read_mostly, policy.preferred, policy.accessed_by, kNoLocation};
          first_policy = false;
          return;
        }
        out->read_mostly = out->read_mostly && policy.read_mostly;
        if (out->preferred != policy.preferred) out->preferred = kNoLocation;
        out->accessed_by &= policy.accessed_by;
      });
  bool first_target = true;
  record->placement->last_prefetch.visit(pages.first - base, pages.last - base,
                                         [&](std::size_t, std::size_t, Placement::Target target) {
                                           if (first_target) out->last_prefetch = target.location;
                                           if (out->last_prefetch != target.location)
                                             out->last_prefetch = kNoLocation;
                                           first_target = false;
                                         });
  return Status::kOk;
}

Status Placements::policy_at(const void* address, Policy* out) {
  const auto state = shared_.lock();
  const MemoryRange range{address, 1};
  const AllocationRecord* record = state->placed_record(range);
  if (record == nullptr) return Status::kInvalidValue;
  *out = record->placement->policy.at(state->pages_of(*record, range).first -
                                      state->first_page_of(*record));
  return Status::kOk;
}

Status Placements::residency(MemoryRange range, int location, std::size_t* out_bytes) {
  if (location != kHost && !shared_.settings().has_device(location)) return Status::kInvalidValue;
  const auto state = shared_.lock();
  const AllocationRecord* record = state->placed_record(range);
  if (record == nullptr) return Status::kInvalidValue;
  const PageRange pages = state->pages_of(*record, range);
  std::size_t bytes =
      state->residency.resident_pages(location, pages.first, pages.last - pages.first) * kPageBytes;
  // The first and last page count only with the bytes inside the range.
  const std::size_t before = range.start() % kPageBytes;
  const std::size_t whole_bytes = (pages.last - pages.first) * kPageBytes;
  if (state->residency.is_resident(location, pages.first)) bytes -= before;
  if (state->residency.is_resident(location, pages.last - 1))
    bytes -= whole_bytes - before - range.size_bytes;
  *out_bytes = bytes;
  return Status::kOk;
}

Status Placements::sample_locations(MemoryRange range, std::size_t step_bytes,
                                    std::vector<int>* out) {
  const auto state = shared_.lock();
  const AllocationRecord* record = state->placed_record(range);
  if (record == nullptr || step_bytes == 0) return Status::kInvalidValue;
  for (std::size_t offset = 0; offset < range.size_bytes; offset += step_bytes) {
    const std::size_t page =
        state->pages_of(*record, {static_cast<const char*>(range.address) + offset, 1}).first;
    int location = 0;
    while (location < shared_.settings().devices && !state->residency.is_resident(location, page))
      ++location;
    if (location == shared_.settings().devices)
      location = state->residency.is_resident(kHost, page) ? kHost : kNoLocation;
    out->push_back(location);
  }
  return Status::kOk;
}

}  // namespace uvmsim
