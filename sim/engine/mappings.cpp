#include "sim/engine/mappings.hpp"

#include "sim/engine/machine_state.hpp"
#include "sim/engine/units.hpp"

namespace uvmsim {
namespace {

bool is_whole(std::size_t bytes) {
  return bytes != 0 && bytes % kMappingGranularityBytes == 0;
}

std::uint64_t bit_of(int device) {
  return std::uint64_t{1} << device;
}

void drop_if_unused(MachineState& state, PieceHandle handle) {
  const auto piece = state.virtual_memory.take_unused(handle);
  if (!piece) return;
  state.memory(piece->device).release(piece->size_bytes);
  state.device_only.free(piece->address, piece->size_bytes);
  ++state.counters.device_frees;
}

// Makes one record for each run, so that an access may span adjacent mappings.
void know_mappings(MachineState& state) {
  for (const std::uintptr_t address : state.known_mappings) state.allocations.remove(address);
  state.known_mappings.clear();
  for (const VirtualMemory::Run& run : state.virtual_memory.runs()) {
    Allocation allocation = state.describe(
        MemoryKind::kDevice, reinterpret_cast<void*>(run.address), run.size_bytes, run.device, 0);
    allocation.mapped_for = run.devices;
    state.allocations.add({.allocation = allocation, .placement = nullptr});
    state.known_mappings.push_back(run.address);
  }
}

}  // namespace

Status Mappings::reserve_addresses(std::size_t bytes, std::size_t alignment_bytes, void** out) {
  const bool is_power = (alignment_bytes & (alignment_bytes - 1)) == 0;
  if (!is_whole(bytes) || !is_power) return Status::kInvalidValue;
  if (alignment_bytes > kMappingGranularityBytes) return Status::kNotSupported;
  if (bytes > kLargestRequestBytes) return Status::kOutOfMemory;
  const auto state = shared_.lock();
  const std::uintptr_t address = state->device_only.allocate(bytes);
  if (address == 0) return Status::kOutOfMemory;
  state->virtual_memory.reserve(address, bytes);
  *out = reinterpret_cast<void*>(address);
  return Status::kOk;
}

Status Mappings::free_addresses(void* address, std::size_t bytes) {
  const auto user = reinterpret_cast<std::uintptr_t>(address);
  const auto state = shared_.lock();
  if (!state->virtual_memory.can_free(user, bytes)) return Status::kInvalidValue;
  state->virtual_memory.free(user);
  state->device_only.free(user, bytes);
  return Status::kOk;
}

Status Mappings::create_piece(int device, std::size_t bytes, PieceHandle* out) {
  if (!is_whole(bytes)) return Status::kInvalidValue;
  if (!shared_.settings().has_device(device)) return Status::kInvalidDevice;
  if (bytes > kLargestRequestBytes) return Status::kOutOfMemory;
  const auto state = shared_.lock();
  if (!state->memory(device).could_hold(bytes)) return Status::kOutOfMemory;
  const std::uintptr_t address = state->device_only.allocate(bytes);
  if (address == 0) return Status::kOutOfMemory;
  state->make_room(device, bytes);
  state->memory(device).charge(bytes);
  *out = state->virtual_memory.add({device, bytes, address});
  ++state->counters.device_allocations;
  return Status::kOk;
}

Status Mappings::release_piece(PieceHandle handle) {
  const auto state = shared_.lock();
  VirtualMemory::Piece* piece = state->virtual_memory.find(handle);
  if (piece == nullptr || piece->handles == 0) return Status::kInvalidValue;
  --piece->handles;
  drop_if_unused(*state, handle);
  return Status::kOk;
}

Status Mappings::retain_piece(const void* address, PieceHandle* out) {
  const auto state = shared_.lock();
  const auto* mapping =
      state->virtual_memory.find_mapping(reinterpret_cast<std::uintptr_t>(address));
  if (mapping == nullptr) return Status::kInvalidValue;
  ++state->virtual_memory.find(mapping->piece)->handles;
  *out = mapping->piece;
  return Status::kOk;
}

std::optional<int> Mappings::device_of_piece(PieceHandle handle) {
  const auto state = shared_.lock();
  const VirtualMemory::Piece* piece = state->virtual_memory.find(handle);
  if (piece == nullptr) return std::nullopt;
  return piece->device;
}

Status Mappings::map_piece(void* address, std::size_t bytes, PieceHandle handle) {
  const auto user = reinterpret_cast<std::uintptr_t>(address);
  const auto state = shared_.lock();
  const VirtualMemory::Piece* piece = state->virtual_memory.find(handle);
  if (piece == nullptr || !is_whole(bytes) || bytes > piece->size_bytes ||
      user % kMappingGranularityBytes != 0 || !state->virtual_memory.can_map(user, bytes)) {
    return Status::kInvalidValue;
  }
  const std::size_t offset = state->device_only.offset_of(piece->address);
  if (!state->device_only.show(user, bytes, state->device_only.memfd(), offset))
    return Status::kOutOfMemory;
  state->virtual_memory.map(user, bytes, handle);
  return Status::kOk;
}

Status Mappings::unmap_pieces(void* address, std::size_t bytes) {
  const auto user = reinterpret_cast<std::uintptr_t>(address);
  const auto state = shared_.lock();
  const auto mappings = state->virtual_memory.mappings_of(user, bytes);
  if (mappings.empty()) return Status::kInvalidValue;
  for (int device = 0; device < shared_.settings().devices; ++device) {
    state->timeline.wait_until(state->timeline.device_completion_ns(device));
  }
  if (!state->device_only.show_own(user, bytes)) return Status::kOutOfMemory;
  for (const std::uintptr_t mapping : mappings)
    drop_if_unused(*state, state->virtual_memory.unmap(mapping));
  know_mappings(*state);
  return Status::kOk;
}

Status Mappings::set_access(const void* address, std::size_t bytes, int device, bool may_use) {
  if (!shared_.settings().has_device(device)) return Status::kInvalidDevice;
  const auto state = shared_.lock();
  const auto mappings =
      state->virtual_memory.mappings_of(reinterpret_cast<std::uintptr_t>(address), bytes);
  if (mappings.empty()) return Status::kInvalidValue;
  for (const std::uintptr_t at : mappings) {
    std::uint64_t& devices = state->virtual_memory.mapping(at).devices;
    devices = may_use ? devices | bit_of(device) : devices & ~bit_of(device);
  }
  know_mappings(*state);
  return Status::kOk;
}

Status Mappings::access_of(const void* address, int device, bool* out) {
  const auto state = shared_.lock();
  const auto* mapping =
      state->virtual_memory.find_mapping(reinterpret_cast<std::uintptr_t>(address));
  if (mapping == nullptr) return Status::kInvalidValue;
  *out = shared_.settings().has_device(device) && (mapping->devices & bit_of(device)) != 0;
  return Status::kOk;
}

std::optional<VirtualMemory::Run> Mappings::mapped_at(const void* address) {
  return shared_.lock()->virtual_memory.mapped_at(reinterpret_cast<std::uintptr_t>(address));
}

}  // namespace uvmsim
