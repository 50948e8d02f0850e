// Kernels, copies, fills and peer access.
#include <algorithm>
#include <cstring>

#include "sim/engine/machine.hpp"
#include "sim/engine/units.hpp"
#include "sim/engine/work_trace.hpp"

namespace uvmsim {
namespace {

// Returns false on overflow.
bool extent(std::size_t width_bytes, std::size_t rows, std::size_t pitch_bytes, std::size_t* out) {
  return !__builtin_mul_overflow(rows - 1, pitch_bytes, out) &&
         !__builtin_add_overflow(*out, width_bytes, out);
}

bool is_inside(const AllocationRecord& record, std::uintptr_t address, std::size_t bytes) {
  return bytes <= record.allocation.size_bytes - (address - record.allocation.address);
}

void fill_bytes(std::byte* to, const Fill& fill) {
  if (fill.value_bytes == 1) {
    std::memset(to, static_cast<int>(fill.value & 0xff), fill.count);
  } else if (fill.value_bytes == 2) {
    std::fill_n(reinterpret_cast<std::uint16_t*>(to), fill.count,
                static_cast<std::uint16_t>(fill.value));
  } else {
    std::fill_n(reinterpret_cast<std::uint32_t*>(to), fill.count, fill.value);
  }
}

void copy_rows(std::byte* to, const std::byte* from, const Copy& copy) {
  for (std::size_t row = 0; row < copy.rows; ++row) {
    std::memmove(to + row * copy.to_pitch_bytes, from + row * copy.from_pitch_bytes,
                 copy.width_bytes);
  }
}

}  // namespace

// ---- kernels

bool Machine::may_use(int device, const Allocation& allocation) const {
  if (allocation.kind != MemoryKind::kDevice) return true;
  if (allocation.mapped_for != 0) return (allocation.mapped_for >> device & 1) != 0;
  return allocation.device == device || peers_.contains({device, allocation.device});
}

Status Machine::kernel(int device, StreamHandle stream, const uvmsim_access* accesses,
                       std::size_t count, const KernelWork& work) {
  const Status status = start_kernel(device, stream, accesses, count, work);
  if (status == Status::kOk) WorkTrace::kernel(device, stream, work, {accesses, count});
  return status;
}

Status Machine::start_kernel(int device, StreamHandle stream, const uvmsim_access* accesses,
                             std::size_t count, const KernelWork& work) {
  if (!has_device(device)) return Status::kInvalidDevice;
  const std::lock_guard lock(mutex_);
  Stream* target = timeline_.find_stream(device, stream);
  if (target == nullptr || target->device != device) return Status::kInvalidHandle;
  if (const auto outcome = record_or_refuse(*target, NodeKind::kKernel, nullptr)) return *outcome;
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const uvmsim_access& access = accesses[i];
    if (access.size_bytes == 0) continue;
    bytes += moved_bytes(access.size_bytes, access.access);
    if ((access.access & (UVMSIM_READ | UVMSIM_WRITE)) == 0) return Status::kInvalidValue;
    const AllocationRecord* record = record_of({access.address, access.size_bytes});
    if (record == nullptr) return Status::kIllegalAddress;
    if (!may_use(device, record->allocation)) return Status::kIllegalAddress;
  }
  ++counters_.kernels;
  timeline_.advance(call_ns());
  const std::uint64_t at_ns = timeline_.earliest_start_ns(*target);
  Status status = Status::kOk;
  for (std::size_t i = 0; i < count && status == Status::kOk; ++i) {
    if (accesses[i].size_bytes != 0) status = touch(device, accesses[i], at_ns);
  }
  timeline_.submit(*target, costs_.phases(residency_.take_work(), costs_.kernel_ns(work, bytes)));
  return status;
}

Status Machine::touch(int device, const uvmsim_access& access, std::uint64_t at_ns) {
  const AllocationRecord* found = record_of({access.address, access.size_bytes});
  // The program may unmap ordinary memory at any time.
  if (found == nullptr) return Status::kIllegalAddress;
  const AllocationRecord& record = *found;
  if (record.placement == nullptr) {
    const bool local =
        record.allocation.kind == MemoryKind::kDevice && record.allocation.device == device;
    if (!local) counters_.remote_access_bytes += access.size_bytes;
    return Status::kOk;
  }
  const PageRange pages = pages_of(record, {access.address, access.size_bytes});
  if (residency_.is_whole_at(device, pages)) return Status::kOk;
  const std::size_t base = first_page_of(record);
  const Access mode{(access.access & UVMSIM_READ) != 0, (access.access & UVMSIM_WRITE) != 0, at_ns};
  Status status = Status::kOk;
  record.placement->policy.visit(
      pages.first - base, pages.last - base,
      [&](std::size_t first, std::size_t last, const Policy& policy) {
        if (status != Status::kOk) return;
        const auto [begin, end] = record.placement->policy.span_of(first);
        status = residency_.touch(device, {base + first, base + last}, {base + begin, base + end},
                                  in_force(record, policy), mode);
      });
  return status;
}

// ---- copies

Status Machine::resolve_end(const void* address, std::size_t bytes, CopyEnd expected, End* out) {
  const auto user = reinterpret_cast<std::uintptr_t>(address);
  if (user == 0) return Status::kInvalidValue;
  const AllocationRecord* record = allocations_.find(user);
  if (record == nullptr && ordinary_ != nullptr) {
    record = ordinary_record({address, bytes});
    if (record == nullptr && !OrdinaryMemory::is_mapped(user, bytes)) return Status::kInvalidValue;
  }
  const bool is_device_only = record != nullptr && record->allocation.kind == MemoryKind::kDevice;
  if (expected == CopyEnd::kDeviceMemory && record == nullptr) return Status::kInvalidValue;
  if (expected == CopyEnd::kHostMemory && is_device_only) return Status::kInvalidValue;
  // Registered memory may be part of a larger piece of host memory. All other records end where the
  // memory ends.
  if (record != nullptr && record->allocation.kind != MemoryKind::kRegistered &&
      !is_inside(*record, user, bytes)) {
    return Status::kInvalidValue;
  }
  *out = {view_of(record, user), record};
  return Status::kOk;
}

// Returns the location at which an explicit copy puts managed pages that are nowhere.
int Machine::landing_place(const AllocationRecord& record, std::uintptr_t address, CopyEnd end,
                           int device) const {
  const std::size_t page = (address - record.allocation.address) / kPageBytes;
  const int preferred = record.placement->policy.at(page).preferred;
  if (preferred != kNoLocation) return preferred;
  return end == CopyEnd::kHostMemory ? kHost : device;
}

Status Machine::place_copy_end(const End& end, const void* address, std::size_t bytes,
                               CopyEnd expected, int device, bool write) {
  if (end.record == nullptr || end.record->placement == nullptr) return Status::kOk;
  const int place =
      landing_place(*end.record, reinterpret_cast<std::uintptr_t>(address), expected, device);
  const PageRange pages = pages_of(*end.record, {address, bytes});
  const Status status = residency_.copy_access(place, pages, write);
  // If the device has no chunk left, the copy uses host memory.
  return status == Status::kOutOfMemory ? residency_.copy_access(kHost, pages, write) : status;
}

Status Machine::place_rows(const Copy& copy, const CopyEnds& ends, int device, bool write) {
  const End& end = write ? ends.to : ends.from;
  const CopyEnd expected = write ? copy.to_end : copy.from_end;
  const auto* address = static_cast<const std::byte*>(write ? copy.to : copy.from);
  const std::size_t pitch_bytes = write ? copy.to_pitch_bytes : copy.from_pitch_bytes;
  // If the gap between rows is shorter than a page, the copy uses every page.
  if (copy.rows == 1 || pitch_bytes < copy.width_bytes + kPageBytes) {
    const std::size_t bytes = write ? ends.to_extent : ends.from_extent;
    return place_copy_end(end, address, bytes, expected, device, write);
  }
  Status status = Status::kOk;
  for (std::size_t row = 0; row < copy.rows && status == Status::kOk; ++row) {
    status =
        place_copy_end(end, address + row * pitch_bytes, copy.width_bytes, expected, device, write);
  }
  return status;
}

Status Machine::resolve_copy(const Copy& copy, CopyEnds* out) {
  if (!extent(copy.width_bytes, copy.rows, copy.to_pitch_bytes, &out->to_extent) ||
      !extent(copy.width_bytes, copy.rows, copy.from_pitch_bytes, &out->from_extent)) {
    return Status::kInvalidValue;
  }
  const Status status = resolve_end(copy.to, out->to_extent, copy.to_end, &out->to);
  return status == Status::kOk ? resolve_end(copy.from, out->from_extent, copy.from_end, &out->from)
                               : status;
}

void Machine::submit_moves(Stream& stream) {
  timeline_.submit(stream, costs_.phases(residency_.take_work()));
}

Status Machine::submit_copy(Stream& stream, const Copy& copy, const CopyEnds& ends) {
  Status status = place_rows(copy, ends, stream.device, /*write=*/false);
  if (status == Status::kOk) status = place_rows(copy, ends, stream.device, /*write=*/true);
  if (status != Status::kOk) {
    submit_moves(stream);
    return status;
  }
  const std::size_t bytes = copy.width_bytes * copy.rows;
  ++counters_.copy_calls;
  counters_.copy_bytes += bytes;
  timeline_.advance(call_ns());
  timeline_.submit(stream, costs_.copy_phases(residency_.take_work(), bytes, way_of(ends)));
  return Status::kOk;
}

CopyWay Machine::way_of(const CopyEnds& ends) {
  const auto is_on_device = [](const End& end) {
    return end.record != nullptr && end.record->allocation.kind == MemoryKind::kDevice;
  };
  if (is_on_device(ends.to) && is_on_device(ends.from)) {
    const bool is_inside = ends.to.record->allocation.device == ends.from.record->allocation.device;
    return is_inside ? CopyWay::kInside : CopyWay::kBetweenDevices;
  }
  return is_on_device(ends.from) && !is_on_device(ends.to) ? CopyWay::kToHost : CopyWay::kToDevice;
}

TracedCopy Machine::traced_copy(const Copy& copy, const CopyEnds& ends) {
  const auto placed = [](const End& end, const void* address, std::size_t extent, int access) {
    const bool is_placed = end.record != nullptr && end.record->placement != nullptr;
    return uvmsim_access{address, is_placed ? extent : 0, access};
  };
  return {way_of(ends), copy.width_bytes * copy.rows,
          placed(ends.from, copy.from, ends.from_extent, UVMSIM_READ),
          placed(ends.to, copy.to, ends.to_extent, UVMSIM_WRITE)};
}

Status Machine::copy(int device, StreamHandle stream, const Copy& copy, Wait wait) {
  if (copy.width_bytes == 0 || copy.rows == 0) return refuse_unknown_stream(device, stream);
  CopyEnds ends{};
  bool waits = wait == Wait::kYes;
  std::uint64_t completion_ns = 0;
  TracedCopy traced;
  {
    const std::lock_guard lock(mutex_);
    Stream* target = timeline_.find_stream(device, stream);
    if (target == nullptr) return Status::kInvalidHandle;
    Status status = resolve_copy(copy, &ends);
    if (status != Status::kOk) return status;
    if (waits) {
      if (const auto outcome = refuse_blocking(*target)) return *outcome;
    }
    const NodeWork work = [copy](Machine& machine, int on, StreamHandle lane) {
      return machine.copy(on, lane, copy, Wait::kNo);
    };
    if (const auto outcome = record_or_refuse(*target, NodeKind::kCopy, work)) return *outcome;
    status = submit_copy(*target, copy, ends);
    if (status != Status::kOk) return status;
    traced = traced_copy(copy, ends);
    completion_ns = timeline_.completion_ns(*target);
    // A copy to memory that is not pinned is complete when the call returns.
    waits = waits || ends.to.is_pageable();
  }
  copy_rows(ends.to.bytes, ends.from.bytes, copy);
  WorkTrace::copy(device, stream, traced);
  if (waits) {
    const std::lock_guard lock(mutex_);
    timeline_.wait_until(completion_ns);
  }
  return Status::kOk;
}

Status Machine::refuse_unknown_stream(int device, StreamHandle stream) {
  const std::lock_guard lock(mutex_);
  return timeline_.find_stream(device, stream) == nullptr ? Status::kInvalidHandle : Status::kOk;
}

Status Machine::fill(int device, StreamHandle stream, const Fill& fill, Wait wait) {
  std::byte* to = nullptr;
  {
    const std::lock_guard lock(mutex_);
    Stream* target = timeline_.find_stream(device, stream);
    if (target == nullptr) return Status::kInvalidHandle;
    const auto user = reinterpret_cast<std::uintptr_t>(fill.to);
    if (user % fill.value_bytes != 0 || fill.count > kLargestRequestBytes)
      return Status::kInvalidValue;
    const std::size_t bytes = fill.count * fill.value_bytes;
    if (bytes == 0) return Status::kOk;
    End end{};
    Status status = resolve_end(fill.to, bytes, CopyEnd::kDeviceMemory, &end);
    if (status != Status::kOk) return status;
    if (wait == Wait::kYes) {
      if (const auto outcome = refuse_blocking(*target)) return *outcome;
    }
    const NodeWork work = [fill](Machine& machine, int on, StreamHandle lane) {
      return machine.fill(on, lane, fill, Wait::kNo);
    };
    if (const auto outcome = record_or_refuse(*target, fill.node_kind, work)) return *outcome;
    status = place_copy_end(end, fill.to, bytes, CopyEnd::kDeviceMemory, target->device, true);
    if (status != Status::kOk) {
      submit_moves(*target);
      return status;
    }
    timeline_.advance(call_ns());
    timeline_.submit(*target, costs_.phases(residency_.take_work(), costs_.local_copy_ns(bytes)));
    if (wait == Wait::kYes) timeline_.wait_until(timeline_.completion_ns(*target));
    to = end.bytes;
  }
  fill_bytes(to, fill);
  WorkTrace::fill(device, stream, fill);
  return Status::kOk;
}

// ---- peers

bool Machine::peer_access(int device, int peer) {
  const std::lock_guard lock(mutex_);
  return peers_.contains({device, peer});
}

Status Machine::enable_peer_access(int device, int peer) {
  if (!has_device(peer) || peer == device) return Status::kInvalidDevice;
  const std::lock_guard lock(mutex_);
  return peers_.emplace(device, peer).second ? Status::kOk : Status::kPeerAccessAlreadyEnabled;
}

Status Machine::disable_peer_access(int device, int peer) {
  if (!has_device(peer)) return Status::kInvalidDevice;
  const std::lock_guard lock(mutex_);
  return peers_.erase({device, peer}) != 0 ? Status::kOk : Status::kPeerAccessNotEnabled;
}

}  // namespace uvmsim
