// Advice, prefetch, discard and queries about placement.
#include "sim/engine/machine.hpp"
#include "sim/engine/units.hpp"

namespace uvmsim {
namespace {

std::uintptr_t address_of(MemoryRange range) {
  return reinterpret_cast<std::uintptr_t>(range.address);
}

}  // namespace

// The modelled driver does not read-duplicate ordinary memory.
Policy Machine::in_force(const AllocationRecord& record, Policy policy) {
  if (record.allocation.kind == MemoryKind::kOrdinary) policy.read_mostly = false;
  return policy;
}

// Returns the record that contains the whole range: an allocation, or the record of ordinary memory
// if devices reach that. Otherwise returns null.
AllocationRecord* Machine::record_of(MemoryRange range) {
  AllocationRecord* record = allocations_.find(address_of(range));
  if (record == nullptr) return ordinary_record(range);
  const std::size_t offset = address_of(range) - record->allocation.address;
  return range.size_bytes <= record->allocation.size_bytes - offset ? record : nullptr;
}

// Returns null if devices do not reach ordinary memory, or if part of the range is unmapped or
// belongs to the machine.
AllocationRecord* Machine::ordinary_record(MemoryRange range) {
  const std::uintptr_t address = address_of(range);
  if (ordinary_ == nullptr || range.size_bytes == 0) return nullptr;
  if (!OrdinaryMemory::is_mapped(address, range.size_bytes)) {
    forget_unmapped();
    return nullptr;
  }
  if (allocations_.overlaps(address, range.size_bytes) ||
      managed_.meets(address, range.size_bytes) || device_only_.meets(address, range.size_bytes)) {
    return nullptr;
  }
  return &ordinary_->record();
}

// The machine does not see when the program unmaps memory, so check the mappings now.
void Machine::forget_unmapped() {
  if (ordinary_ == nullptr) return;
  residency_.forget_unmapped();
  ordinary_->forget_unmapped();
}

// Returns the record of the range if its pages can move, else null.
AllocationRecord* Machine::placed_record(MemoryRange range) {
  AllocationRecord* record = range.size_bytes == 0 ? nullptr : record_of(range);
  return record != nullptr && record->placement != nullptr ? record : nullptr;
}

// Returns the numbers of the pages that the range touches.
PageRange Machine::pages_of(const AllocationRecord& record, MemoryRange range) const {
  const std::size_t base = first_page_of(record);
  const std::size_t offset = address_of(range) - record.allocation.address;
  return {base + offset / kPageBytes,
          base + round_up(offset + range.size_bytes, kPageBytes) / kPageBytes};
}

std::size_t Machine::first_page_of(const AllocationRecord& record) const {
  if (record.allocation.kind == MemoryKind::kOrdinary) return managed_.size() / kPageBytes;
  return managed_.offset_of(record.allocation.address) / kPageBytes;
}

Status Machine::advise(MemoryRange range, Advice advice, int location) {
  if (location != kHost && !has_device(location)) return Status::kInvalidDevice;
  const std::lock_guard lock(mutex_);
  AllocationRecord* record = placed_record(range);
  if (record == nullptr) return Status::kInvalidValue;
  ++counters_.advice_calls;
  const PageRange pages = pages_of(*record, range);
  timeline_.run_exclusively(costs_.advice_ns(residency_.populated_blocks(pages)));
  residency_.advise(&record->placement->policy, first_page_of(*record), pages, advice, location);
  return Status::kOk;
}

Status Machine::prefetch(int device, StreamHandle stream, MemoryRange range, int location) {
  if (location != kHost && !has_device(location)) return Status::kInvalidDevice;
  const std::lock_guard lock(mutex_);
  Stream* target = timeline_.find_stream(device, stream);
  if (target == nullptr) return Status::kInvalidHandle;
  AllocationRecord* record = placed_record(range);
  if (record == nullptr) return Status::kInvalidValue;
  // A graph has no prefetch nodes, so a capturing stream refuses the call.
  if (const auto outcome = record_or_refuse(*target, NodeKind::kEmpty, nullptr)) return *outcome;
  ++counters_.prefetch_calls;
  const PageRange pages = pages_of(*record, range);
  const std::size_t base = first_page_of(*record);
  Status status = Status::kOk;
  record->placement->policy.visit(pages.first - base, pages.last - base,
                                  [&](std::size_t first, std::size_t last, const Policy& policy) {
                                    if (status != Status::kOk) return;
                                    status =
                                        residency_.prefetch(location, {base + first, base + last},
                                                            in_force(*record, policy));
                                  });
  record->placement->last_prefetch.update(
      pages.first - base, pages.last - base,
      [&](Placement::Target) { return Placement::Target{location}; });
  timeline_.advance(call_ns());
  submit_moves(*target);
  return status;
}

Status Machine::discard(int device, StreamHandle stream, MemoryRange range) {
  const std::lock_guard lock(mutex_);
  Stream* target = timeline_.find_stream(device, stream);
  if (target == nullptr) return Status::kInvalidHandle;
  const AllocationRecord* record = placed_record(range);
  if (record == nullptr) return Status::kInvalidValue;
  if (const auto outcome = record_or_refuse(*target, NodeKind::kEmpty, nullptr)) return *outcome;
  ++counters_.discard_calls;
  const std::size_t base = first_page_of(*record);
  const std::size_t offset = address_of(range) - record->allocation.address;
  const PageRange whole{base + round_up(offset, kPageBytes) / kPageBytes,
                        base + (offset + range.size_bytes) / kPageBytes};
  const std::uint64_t blocks =
      whole.first < whole.last ? residency_.populated_blocks(whole) : std::uint64_t{0};
  if (whole.first < whole.last && record->allocation.kind == MemoryKind::kManaged)
    residency_.discard(whole);
  timeline_.advance(call_ns());
  timeline_.submit(*target, costs_.discard_phases(blocks));
  return Status::kOk;
}

bool Machine::has_placement(MemoryRange range) {
  const std::lock_guard lock(mutex_);
  return placed_record(range) != nullptr;
}

Status Machine::placement(MemoryRange range, RangePlacement* out) {
  const std::lock_guard lock(mutex_);
  const AllocationRecord* record = placed_record(range);
  if (record == nullptr) return Status::kInvalidValue;
  const PageRange pages = pages_of(*record, range);
  const std::size_t base = first_page_of(*record);
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

Status Machine::policy_at(const void* address, Policy* out) {
  const std::lock_guard lock(mutex_);
  const MemoryRange range{address, 1};
  const AllocationRecord* record = placed_record(range);
  if (record == nullptr) return Status::kInvalidValue;
  *out = record->placement->policy.at(pages_of(*record, range).first - first_page_of(*record));
  return Status::kOk;
}

Status Machine::residency(MemoryRange range, int location, std::size_t* out_bytes) {
  if (location != kHost && !has_device(location)) return Status::kInvalidValue;
  const std::lock_guard lock(mutex_);
  const AllocationRecord* record = placed_record(range);
  if (record == nullptr) return Status::kInvalidValue;
  const PageRange pages = pages_of(*record, range);
  std::size_t bytes =
      residency_.resident_pages(location, pages.first, pages.last - pages.first) * kPageBytes;
  // The first and last page count only with the bytes inside the range.
  const std::size_t before = address_of(range) % kPageBytes;
  const std::size_t whole_bytes = (pages.last - pages.first) * kPageBytes;
  if (residency_.is_resident(location, pages.first)) bytes -= before;
  if (residency_.is_resident(location, pages.last - 1))
    bytes -= whole_bytes - before - range.size_bytes;
  *out_bytes = bytes;
  return Status::kOk;
}

Status Machine::sample_locations(MemoryRange range, std::size_t step_bytes, std::vector<int>* out) {
  const std::lock_guard lock(mutex_);
  const AllocationRecord* record = placed_record(range);
  if (record == nullptr || step_bytes == 0) return Status::kInvalidValue;
  for (std::size_t offset = 0; offset < range.size_bytes; offset += step_bytes) {
    const std::size_t page =
        pages_of(*record, {static_cast<const char*>(range.address) + offset, 1}).first;
    int location = 0;
    while (location < device_count() && !residency_.is_resident(location, page)) ++location;
    if (location == device_count())
      location = residency_.is_resident(kHost, page) ? kHost : kNoLocation;
    out->push_back(location);
  }
  return Status::kOk;
}

}  // namespace uvmsim
