#include "sim/engine/work.hpp"

#include <algorithm>
#include <cstring>

#include "sim/engine/machine_state.hpp"
#include "sim/engine/units.hpp"
#include "sim/engine/work_trace.hpp"

namespace uvmsim {
namespace {

struct End {
  std::byte* bytes;
  const AllocationRecord* record;  // null for memory unknown to the machine

  bool is_pageable() const {
    return record == nullptr || record->allocation.kind == MemoryKind::kOrdinary;
  }
};

struct CopyEnds {
  End to;
  End from;
  std::size_t to_extent;  // bytes from the first to the last byte, gaps included
  std::size_t from_extent;
};

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

// Returns whether kernels of the device may use memory of this kind.
bool may_use(const MachineState& state, int device, const Allocation& allocation) {
  if (allocation.kind != MemoryKind::kDevice) return true;
  if (allocation.mapped_for != 0) return (allocation.mapped_for >> device & 1) != 0;
  return allocation.device == device || state.peers.contains({device, allocation.device});
}

Status check_accesses(MachineState& state, int device, std::span<const uvmsim_access> accesses) {
  for (const uvmsim_access& access : accesses) {
    if (access.size_bytes == 0) continue;
    if ((access.access & (UVMSIM_READ | UVMSIM_WRITE)) == 0) return Status::kInvalidValue;
    const AllocationRecord* record = state.record_of({access.address, access.size_bytes});
    if (record == nullptr) return Status::kIllegalAddress;
    if (!may_use(state, device, record->allocation)) return Status::kIllegalAddress;
  }
  return Status::kOk;
}

Status touch(MachineState& state, int device, const uvmsim_access& access, std::uint64_t at_ns) {
  const AllocationRecord* found = state.record_of({access.address, access.size_bytes});
  // The program may unmap ordinary memory at any time.
  if (found == nullptr) return Status::kIllegalAddress;
  const AllocationRecord& record = *found;
  if (record.placement == nullptr) {
    const bool local =
        record.allocation.kind == MemoryKind::kDevice && record.allocation.device == device;
    if (!local) state.counters.remote_access_bytes += access.size_bytes;
    return Status::kOk;
  }
  const PageRange pages = state.pages_of(record, {access.address, access.size_bytes});
  if (state.residency.is_whole_at(device, pages)) return Status::kOk;
  const std::size_t base = state.first_page_of(record);
  const Access mode{(access.access & UVMSIM_READ) != 0, (access.access & UVMSIM_WRITE) != 0, at_ns};
  Status status = Status::kOk;
  record.placement->policy.visit(
      pages.first - base, pages.last - base,
      [&](std::size_t first, std::size_t last, const Policy& policy) {
        if (status != Status::kOk) return;
        const auto [begin, end] = record.placement->policy.span_of(first);
        status = state.residency.touch(device, {base + first, base + last},
                                       {base + begin, base + end}, record.in_force(policy), mode);
      });
  return status;
}

// ---- copies

// Returns false on overflow.
bool extent(std::size_t width_bytes, std::size_t rows, std::size_t pitch_bytes, std::size_t* out) {
  return !__builtin_mul_overflow(rows - 1, pitch_bytes, out) &&
         !__builtin_add_overflow(*out, width_bytes, out);
}

bool is_inside(const AllocationRecord& record, std::uintptr_t address, std::size_t bytes) {
  return bytes <= record.allocation.size_bytes - (address - record.allocation.address);
}

Status resolve_end(MachineState& state, const void* address, std::size_t bytes, CopyEnd expected,
                   End* out) {
  const auto user = reinterpret_cast<std::uintptr_t>(address);
  if (user == 0) return Status::kInvalidValue;
  const AllocationRecord* record = state.allocations.find(user);
  if (record == nullptr && state.ordinary != nullptr) {
    record = state.ordinary_record({address, bytes});
    if (record == nullptr && !OrdinaryMemory::is_mapped(user, bytes)) return Status::kInvalidValue;
  }
  const bool is_device_only = record != nullptr && record->allocation.kind == MemoryKind::kDevice;
  if (expected == CopyEnd::kDeviceMemory && record == nullptr) return Status::kInvalidValue;
  if (expected == CopyEnd::kHostMemory && is_device_only) return Status::kInvalidValue;
  // Registered memory may be part of a larger piece of host memory. All other records end where
  // their memory ends.
  if (record != nullptr && record->allocation.kind != MemoryKind::kRegistered &&
      !is_inside(*record, user, bytes)) {
    return Status::kInvalidValue;
  }
  *out = {state.view_of(record, user), record};
  return Status::kOk;
}

// Returns the location at which an explicit copy makes managed pages resident that are nowhere.
int landing_place(const AllocationRecord& record, std::uintptr_t address, CopyEnd end, int device) {
  const std::size_t page = (address - record.allocation.address) / kPageBytes;
  const int preferred = record.placement->policy.at(page).preferred;
  if (preferred != kNoLocation) return preferred;
  return end == CopyEnd::kHostMemory ? kHost : device;
}

Status place_copy_end(MachineState& state, const End& end, const void* address, std::size_t bytes,
                      CopyEnd expected, int device, bool write) {
  if (end.record == nullptr || end.record->placement == nullptr) return Status::kOk;
  const int place =
      landing_place(*end.record, reinterpret_cast<std::uintptr_t>(address), expected, device);
  const PageRange pages = state.pages_of(*end.record, {address, bytes});
  const Status status = state.residency.copy_access(place, pages, write);
  // If the device has no free chunk, the copy uses host memory.
  return status == Status::kOutOfMemory ? state.residency.copy_access(kHost, pages, write) : status;
}

Status place_rows(MachineState& state, const Copy& copy, const CopyEnds& ends, int device,
                  bool write) {
  const End& end = write ? ends.to : ends.from;
  const CopyEnd expected = write ? copy.to_end : copy.from_end;
  const auto* address = static_cast<const std::byte*>(write ? copy.to : copy.from);
  const std::size_t pitch_bytes = write ? copy.to_pitch_bytes : copy.from_pitch_bytes;
  // If the gap between rows is shorter than a page, the copy uses every page.
  if (copy.rows == 1 || pitch_bytes < copy.width_bytes + kPageBytes) {
    const std::size_t bytes = write ? ends.to_extent : ends.from_extent;
    return place_copy_end(state, end, address, bytes, expected, device, write);
  }
  Status status = Status::kOk;
  for (std::size_t row = 0; row < copy.rows && status == Status::kOk; ++row) {
    status = place_copy_end(state, end, address + row * pitch_bytes, copy.width_bytes, expected,
                            device, write);
  }
  return status;
}

Status resolve_copy(MachineState& state, const Copy& copy, CopyEnds* out) {
  if (!extent(copy.width_bytes, copy.rows, copy.to_pitch_bytes, &out->to_extent) ||
      !extent(copy.width_bytes, copy.rows, copy.from_pitch_bytes, &out->from_extent)) {
    return Status::kInvalidValue;
  }
  const Status status = resolve_end(state, copy.to, out->to_extent, copy.to_end, &out->to);
  return status == Status::kOk
             ? resolve_end(state, copy.from, out->from_extent, copy.from_end, &out->from)
             : status;
}

CopyWay way_of(const CopyEnds& ends) {
  const auto is_on_device = [](const End& end) {
    return end.record != nullptr && end.record->allocation.kind == MemoryKind::kDevice;
  };
  if (is_on_device(ends.to) && is_on_device(ends.from)) {
    const bool is_inside = ends.to.record->allocation.device == ends.from.record->allocation.device;
    return is_inside ? CopyWay::kInside : CopyWay::kBetweenDevices;
  }
  return is_on_device(ends.from) && !is_on_device(ends.to) ? CopyWay::kToHost : CopyWay::kToDevice;
}

// Puts the page moves of a call on the call's stream, even if the call fails.
void submit_moves(MachineState& state, Stream& stream) {
  state.timeline.submit(stream, state.costs.phases(state.residency.take_work()));
}

Status submit_copy(MachineState& state, Stream& stream, const Copy& copy, const CopyEnds& ends) {
  Status status = place_rows(state, copy, ends, stream.device, /*write=*/false);
  if (status == Status::kOk) status = place_rows(state, copy, ends, stream.device, /*write=*/true);
  if (status != Status::kOk) {
    submit_moves(state, stream);
    return status;
  }
  const std::size_t bytes = copy.width_bytes * copy.rows;
  ++state.counters.copy_calls;
  state.counters.copy_bytes += bytes;
  state.timeline.advance(state.call_ns());
  state.timeline.submit(stream,
                        state.costs.copy_phases(state.residency.take_work(), bytes, way_of(ends)));
  return Status::kOk;
}

TracedCopy traced_copy(const Copy& copy, const CopyEnds& ends) {
  const auto placed = [](const End& end, const void* address, std::size_t extent, int access) {
    const bool is_placed = end.record != nullptr && end.record->placement != nullptr;
    return uvmsim_access{address, is_placed ? extent : 0, access};
  };
  return {way_of(ends), copy.width_bytes * copy.rows,
          placed(ends.from, copy.from, ends.from_extent, UVMSIM_READ),
          placed(ends.to, copy.to, ends.to_extent, UVMSIM_WRITE)};
}

}  // namespace

// ---- kernels and host functions

Status Work::kernel(int device, StreamHandle stream, std::span<const uvmsim_access> accesses,
                    const KernelWork& work) {
  if (!shared_.settings().has_device(device)) return Status::kInvalidDevice;
  {
    const auto state = shared_.lock();
    Stream* target = state->timeline.find_stream(device, stream);
    if (target == nullptr || target->device != device) return Status::kInvalidHandle;
    if (const auto outcome = state->captures.record_or_refuse(*target, NodeKind::kKernel, nullptr))
      return *outcome;
    Status status = check_accesses(*state, device, accesses);
    if (status != Status::kOk) return status;
    ++state->counters.kernels;
    state->timeline.advance(state->call_ns());
    const std::uint64_t at_ns = state->timeline.earliest_start_ns(*target);
    std::uint64_t bytes = 0;
    for (const uvmsim_access& access : accesses) {
      bytes += moved_bytes(access.size_bytes, access.access);
      if (status == Status::kOk && access.size_bytes != 0)
        status = touch(*state, device, access, at_ns);
    }
    state->timeline.submit(*target, state->costs.phases(state->residency.take_work(),
                                                        state->costs.kernel_ns(work, bytes)));
    if (status != Status::kOk) return status;
  }
  WorkTrace::kernel(device, stream, work, accesses);
  return Status::kOk;
}

Status Work::run_host_function(int device, StreamHandle stream, const HostFunction& function) {
  {
    const auto state = shared_.lock();
    Stream* target = state->timeline.find_stream(device, stream);
    if (target == nullptr) return Status::kInvalidHandle;
    const NodeWork work = [function](int, StreamHandle) {
      function();
      return Status::kOk;
    };
    if (const auto outcome =
            state->captures.record_or_refuse(*target, NodeKind::kHostFunction, work))
      return *outcome;
  }
  function();
  return Status::kOk;
}

Status Work::launch_kernel(int device, StreamHandle stream, Kernel launched) {
  const NodeWork work = [this, kernel = std::move(launched)](int on, StreamHandle lane) {
    const Status status = this->kernel(on, lane, kernel.accesses, kernel.work);
    if (status != Status::kOk || !kernel.body) return status;
    return kernel.body() ? Status::kOk : Status::kLaunchFailure;
  };
  {
    const auto state = shared_.lock();
    Stream* target = state->timeline.find_stream(device, stream);
    if (target == nullptr || target->device != device) return Status::kInvalidHandle;
    if (const auto outcome = state->captures.record_or_refuse(*target, NodeKind::kKernel, work))
      return *outcome;
  }
  return work(device, stream);
}

std::uint64_t Work::kernel_ns(std::uint64_t bytes, std::uint64_t operations,
                              OperationType type) const {
  return shared_.costs().kernel_ns(bytes, operations, type);
}

// ---- copies

Status Work::copy(int device, StreamHandle stream, const Copy& copy, Wait wait) {
  CopyEnds ends{};
  bool waits = wait == Wait::kYes;
  std::uint64_t completion_ns = 0;
  TracedCopy traced;
  {
    const auto state = shared_.lock();
    Stream* target = state->timeline.find_stream(device, stream);
    if (target == nullptr) return Status::kInvalidHandle;
    if (copy.width_bytes == 0 || copy.rows == 0) return Status::kOk;
    Status status = resolve_copy(*state, copy, &ends);
    if (status != Status::kOk) return status;
    if (waits) {
      if (const auto outcome = state->captures.refuse_blocking(*target)) return *outcome;
    }
    const NodeWork work = [this, copy](int on, StreamHandle lane) {
      return this->copy(on, lane, copy, Wait::kNo);
    };
    if (const auto outcome = state->captures.record_or_refuse(*target, NodeKind::kCopy, work))
      return *outcome;
    status = submit_copy(*state, *target, copy, ends);
    if (status != Status::kOk) return status;
    traced = traced_copy(copy, ends);
    completion_ns = state->timeline.completion_ns(*target);
    // A copy to memory that is not pinned is complete when the call returns.
    waits = waits || ends.to.is_pageable();
  }
  copy_rows(ends.to.bytes, ends.from.bytes, copy);
  WorkTrace::copy(device, stream, traced);
  if (waits) shared_.lock()->timeline.wait_until(completion_ns);
  return Status::kOk;
}

Status Work::fill(int device, StreamHandle stream, const Fill& fill, Wait wait) {
  std::byte* to = nullptr;
  {
    const auto state = shared_.lock();
    Stream* target = state->timeline.find_stream(device, stream);
    if (target == nullptr) return Status::kInvalidHandle;
    const auto user = reinterpret_cast<std::uintptr_t>(fill.to);
    if (user % fill.value_bytes != 0 || fill.count > kLargestRequestBytes)
      return Status::kInvalidValue;
    const std::size_t bytes = fill.count * fill.value_bytes;
    if (bytes == 0) return Status::kOk;
    End end{};
    Status status = resolve_end(*state, fill.to, bytes, CopyEnd::kDeviceMemory, &end);
    if (status != Status::kOk) return status;
    if (wait == Wait::kYes) {
      if (const auto outcome = state->captures.refuse_blocking(*target)) return *outcome;
    }
    const NodeWork work = [this, fill](int on, StreamHandle lane) {
      return this->fill(on, lane, fill, Wait::kNo);
    };
    if (const auto outcome = state->captures.record_or_refuse(*target, fill.node_kind, work))
      return *outcome;
    status =
        place_copy_end(*state, end, fill.to, bytes, CopyEnd::kDeviceMemory, target->device, true);
    if (status != Status::kOk) {
      submit_moves(*state, *target);
      return status;
    }
    state->timeline.advance(state->call_ns());
    state->timeline.submit(*target, state->costs.phases(state->residency.take_work(),
                                                        state->costs.local_copy_ns(bytes)));
    if (wait == Wait::kYes) state->timeline.wait_until(state->timeline.completion_ns(*target));
    to = end.bytes;
  }
  fill_bytes(to, fill);
  WorkTrace::fill(device, stream, fill);
  return Status::kOk;
}

}  // namespace uvmsim
