#include "sim/engine/memory.hpp"

#include <sys/mman.h>

#include <fstream>
#include <limits>
#include <memory>
#include <string>

#include "sim/engine/machine_state.hpp"
#include "sim/engine/units.hpp"
#include "sim/engine/work_trace.hpp"

namespace uvmsim {
namespace {

constexpr std::size_t kRowAlignmentBytes = 512;

// Returns MemFree of /proc/meminfo, in bytes.
std::size_t free_host_bytes() {
  std::ifstream file("/proc/meminfo");
  std::size_t kib = 0;
  for (std::string name; file >> name;) {
    if (name == "MemFree:" && file >> kib) break;
  }
  return kib << 10;
}

std::size_t charged_bytes(const MachineState& state) {
  std::size_t bytes = 0;
  for (const DeviceMemory& each : state.memories) bytes += each.charged_bytes();
  return bytes;
}

}  // namespace

bool Memory::has_address_space() {
  const auto state = shared_.lock();
  return state->managed.size() != 0 && state->device_only.size() != 0;
}

MemoryUse Memory::use(int device) {
  // As in the modelled driver, memory that Linux could reclaim does not count as free.
  const std::size_t host_free_bytes = shared_.settings().machine.shares_host_memory()
                                          ? free_host_bytes()
                                          : std::numeric_limits<std::size_t>::max();
  const auto state = shared_.lock();
  state->forget_unmapped();
  const DeviceMemory& used = state->memory(device);
  return {used.capacity_bytes(), used.unevictable_bytes(),
          shared_.settings().machine.shares_host_memory()
              ? state->host.used_bytes() - charged_bytes(*state)
              : used.managed_bytes(),
          used.peak_bytes(), host_free_bytes};
}

HostUse Memory::host_use() {
  const auto state = shared_.lock();
  return {state->host.capacity_bytes(), state->host.used_bytes(), state->host.peak_bytes()};
}

void Memory::reset_peak_use(int device) {
  shared_.lock()->memory(device).reset_peak();
}

Status Memory::set_capacity(int device, std::size_t bytes) {
  if (!shared_.settings().has_device(device) || bytes < kBlockBytes) return Status::kInvalidValue;
  const auto state = shared_.lock();
  DeviceMemory& target = state->memory(device);
  const std::size_t unevictable = target.unevictable_at(bytes);
  if (bytes < unevictable) return Status::kOutOfMemory;
  const std::size_t used = unevictable + target.managed_bytes();
  if (used > bytes) {
    // Evict the surplus while the old capacity still applies.
    state->make_room(device, target.free_bytes() + used - bytes);
  }
  target.set_capacity(bytes);
  if (shared_.settings().machine.shares_host_memory()) state->host.set_capacity(bytes);
  return Status::kOk;
}

Status Memory::allocate_managed(int device, std::size_t bytes, unsigned flags, void** out) {
  if (bytes == 0) return Status::kInvalidValue;
  if (bytes > kLargestRequestBytes) return Status::kOutOfMemory;
  WorkTrace::find_library();
  const auto state = shared_.lock();
  if (const Status status = state->captures.admit_unsafe_call(); status != Status::kOk)
    return status;
  const std::uintptr_t address = state->managed.allocate(bytes);
  if (address == 0) return Status::kOutOfMemory;
  *out = reinterpret_cast<void*>(address);
  state->allocations.add(
      {.allocation = state->describe(MemoryKind::kManaged, *out, bytes, device, flags),
       .placement = std::make_unique<Placement>(round_up(bytes, kPageBytes) / kPageBytes)});
  ++state->counters.managed_allocations;
  return Status::kOk;
}

Status Memory::allocate_device(int device, std::size_t bytes, void** out) {
  const auto state = shared_.lock();
  if (const Status status = state->captures.admit_unsafe_call(); status != Status::kOk)
    return status;
  return state->take_device_memory(device, bytes, nullptr, out);
}

Status Memory::allocate_rows(int device, std::size_t width_bytes, std::size_t rows,
                             std::size_t* out_pitch_bytes, void** out) {
  if (width_bytes > kLargestRequestBytes) return Status::kOutOfMemory;
  const std::size_t pitch_bytes = round_up(width_bytes, kRowAlignmentBytes);
  std::size_t bytes = 0;
  if (__builtin_mul_overflow(pitch_bytes, rows, &bytes)) return Status::kOutOfMemory;
  const Status status = allocate_device(device, bytes, out);
  if (status == Status::kOk) *out_pitch_bytes = pitch_bytes;
  return status;
}

Status Memory::allocate_pinned(int device, std::size_t bytes, unsigned flags, void** out) {
  if (bytes == 0) return Status::kInvalidValue;
  if (bytes > kLargestRequestBytes) return Status::kOutOfMemory;
  const auto state = shared_.lock();
  if (const Status status = state->captures.admit_unsafe_call(); status != Status::kOk)
    return status;
  void* address = mmap(nullptr, round_up(bytes, kPageBytes), PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) return Status::kOutOfMemory;
  if (!state->host.take(round_up(bytes, kPageBytes))) {
    munmap(address, round_up(bytes, kPageBytes));
    return Status::kOutOfMemory;
  }
  *out = address;
  state->allocations.add(
      {.allocation = state->describe(MemoryKind::kPinned, address, bytes, device, flags),
       .placement = nullptr});
  ++state->counters.pinned_allocations;
  return Status::kOk;
}

Status Memory::free(void* address, Wait wait) {
  const auto state = shared_.lock();
  const auto user = reinterpret_cast<std::uintptr_t>(address);
  const AllocationRecord* record = state->allocations.find_start(user);
  if (record == nullptr || record->allocation.is_host()) return Status::kInvalidValue;
  const Allocation freed = record->allocation;
  if (freed.imported || freed.mapped_for != 0) return Status::kInvalidValue;
  if (wait == Wait::kYes) {
    if (const Status status = state->captures.admit_unsafe_call(); status != Status::kOk)
      return status;
    state->timeline.wait_until(state->timeline.device_completion_ns(freed.device));
  }
  state->remove_allocation(*record, MachineState::Addresses::kReuse);
  return Status::kOk;
}

Status Memory::free_pinned(void* address) {
  std::size_t bytes = 0;
  {
    const auto state = shared_.lock();
    if (const Status status = state->captures.admit_unsafe_call(); status != Status::kOk)
      return status;
    const auto user = reinterpret_cast<std::uintptr_t>(address);
    const AllocationRecord* record = state->allocations.find_start(user);
    if (record == nullptr || record->allocation.kind != MemoryKind::kPinned)
      return Status::kInvalidValue;
    state->timeline.wait_until(state->timeline.device_completion_ns(record->allocation.device));
    bytes = record->allocation.size_bytes;
    state->host.release(round_up(bytes, kPageBytes));
    state->allocations.remove(user);
    ++state->counters.pinned_frees;
  }
  munmap(address, round_up(bytes, kPageBytes));
  return Status::kOk;
}

Status Memory::register_host(int device, void* address, std::size_t bytes, unsigned flags) {
  if (address == nullptr || bytes == 0) return Status::kInvalidValue;
  const auto state = shared_.lock();
  if (const Status status = state->captures.admit_unsafe_call(); status != Status::kOk)
    return status;
  if (state->allocations.overlaps(reinterpret_cast<std::uintptr_t>(address), bytes)) {
    return Status::kHostMemoryAlreadyRegistered;
  }
  state->allocations.add(
      {.allocation = state->describe(MemoryKind::kRegistered, address, bytes, device, flags),
       .placement = nullptr});
  return Status::kOk;
}

Status Memory::unregister_host(void* address) {
  const auto state = shared_.lock();
  if (const Status status = state->captures.admit_unsafe_call(); status != Status::kOk)
    return status;
  const auto user = reinterpret_cast<std::uintptr_t>(address);
  const AllocationRecord* record = state->allocations.find_start(user);
  if (record == nullptr || record->allocation.kind != MemoryKind::kRegistered)
    return Status::kHostMemoryNotRegistered;
  state->allocations.remove(user);
  return Status::kOk;
}

std::optional<Allocation> Memory::find(const void* address) {
  const auto state = shared_.lock();
  const AllocationRecord* record =
      state->allocations.find(reinterpret_cast<std::uintptr_t>(address));
  if (record == nullptr) return std::nullopt;
  return record->allocation;
}

void* Memory::device_view(const void* address) {
  const auto state = shared_.lock();
  const auto user = reinterpret_cast<std::uintptr_t>(address);
  const AllocationRecord* record = state->record_of({address, 1});
  return record == nullptr ? nullptr : state->view_of(record, user);
}

// ---- peers

bool Memory::peer_access(int device, int peer) {
  return shared_.lock()->peers.contains({device, peer});
}

Status Memory::enable_peer_access(int device, int peer) {
  if (!shared_.settings().has_device(peer) || peer == device) return Status::kInvalidDevice;
  const auto state = shared_.lock();
  return state->peers.emplace(device, peer).second ? Status::kOk
                                                   : Status::kPeerAccessAlreadyEnabled;
}

Status Memory::disable_peer_access(int device, int peer) {
  if (!shared_.settings().has_device(peer)) return Status::kInvalidDevice;
  const auto state = shared_.lock();
  return state->peers.erase({device, peer}) != 0 ? Status::kOk : Status::kPeerAccessNotEnabled;
}

}  // namespace uvmsim
