// Device memory that the program maps itself.
#include "sim/engine/machine.hpp"
#include "sim/engine/units.hpp"

namespace uvmsim {
namespace {

bool is_whole(std::size_t bytes) {
  return bytes != 0 && bytes % kMappingGranularityBytes == 0;
}

std::uint64_t bit_of(int device) {
  return std::uint64_t{1} << device;
}

}  // namespace

Status Machine::reserve_addresses(std::size_t bytes, std::size_t alignment_bytes, void** out) {
  const bool is_power = (alignment_bytes & (alignment_bytes - 1)) == 0;
  if (!is_whole(bytes) || !is_power) return Status::kInvalidValue;
  if (alignment_bytes > kMappingGranularityBytes) return Status::kNotSupported;
  if (bytes > kLargestRequestBytes) return Status::kOutOfMemory;
  const std::lock_guard lock(mutex_);
  const std::uintptr_t address = device_only_.allocate(bytes);
  if (address == 0) return Status::kOutOfMemory;
  virtual_.reserve(address, bytes);
  *out = reinterpret_cast<void*>(address);
  return Status::kOk;
}

Status Machine::free_addresses(void* address, std::size_t bytes) {
  const auto user = reinterpret_cast<std::uintptr_t>(address);
  const std::lock_guard lock(mutex_);
  if (!virtual_.can_free(user, bytes)) return Status::kInvalidValue;
  virtual_.free(user);
  device_only_.free(user, bytes);
  return Status::kOk;
}

Status Machine::create_piece(int device, std::size_t bytes, PieceHandle* out) {
  if (!is_whole(bytes)) return Status::kInvalidValue;
  if (!has_device(device)) return Status::kInvalidDevice;
  if (bytes > kLargestRequestBytes) return Status::kOutOfMemory;
  const std::lock_guard lock(mutex_);
  if (!memory(device).could_hold(bytes)) return Status::kOutOfMemory;
  const std::uintptr_t address = device_only_.allocate(bytes);
  if (address == 0) return Status::kOutOfMemory;
  make_room(device, bytes);
  memory(device).charge(bytes);
  *out = virtual_.add({device, bytes, address});
  ++counters_.device_allocations;
  return Status::kOk;
}

void Machine::drop_if_unused(PieceHandle handle) {
  const auto piece = virtual_.take_unused(handle);
  if (!piece) return;
  memory(piece->device).release(piece->size_bytes);
  device_only_.free(piece->address, piece->size_bytes);
  ++counters_.device_frees;
}

Status Machine::release_piece(PieceHandle handle) {
  const std::lock_guard lock(mutex_);
  VirtualMemory::Piece* piece = virtual_.find(handle);
  if (piece == nullptr || piece->handles == 0) return Status::kInvalidValue;
  --piece->handles;
  drop_if_unused(handle);
  return Status::kOk;
}

Status Machine::retain_piece(const void* address, PieceHandle* out) {
  const std::lock_guard lock(mutex_);
  const auto* mapping = virtual_.find_mapping(reinterpret_cast<std::uintptr_t>(address));
  if (mapping == nullptr) return Status::kInvalidValue;
  ++virtual_.find(mapping->piece)->handles;
  *out = mapping->piece;
  return Status::kOk;
}

std::optional<int> Machine::device_of_piece(PieceHandle handle) {
  const std::lock_guard lock(mutex_);
  const VirtualMemory::Piece* piece = virtual_.find(handle);
  if (piece == nullptr) return std::nullopt;
  return piece->device;
}

Status Machine::map_piece(void* address, std::size_t bytes, PieceHandle handle) {
  const auto user = reinterpret_cast<std::uintptr_t>(address);
  const std::lock_guard lock(mutex_);
  const VirtualMemory::Piece* piece = virtual_.find(handle);
  if (piece == nullptr || !is_whole(bytes) || bytes > piece->size_bytes ||
      user % kMappingGranularityBytes != 0 || !virtual_.can_map(user, bytes)) {
    return Status::kInvalidValue;
  }
  const std::size_t offset = device_only_.offset_of(piece->address);
  if (!device_only_.show(user, bytes, device_only_.memfd(), offset)) return Status::kOutOfMemory;
  virtual_.map(user, bytes, handle);
  return Status::kOk;
}

Status Machine::unmap_pieces(void* address, std::size_t bytes) {
  const auto user = reinterpret_cast<std::uintptr_t>(address);
  const std::lock_guard lock(mutex_);
  const auto mappings = virtual_.mappings_of(user, bytes);
  if (mappings.empty()) return Status::kInvalidValue;
  for (int device = 0; device < device_count(); ++device) {
    timeline_.wait_until(timeline_.device_completion_ns(device));
  }
  if (!device_only_.show_own(user, bytes)) return Status::kOutOfMemory;
  for (const std::uintptr_t mapping : mappings) drop_if_unused(virtual_.unmap(mapping));
  know_mappings();
  return Status::kOk;
}

Status Machine::set_access(const void* address, std::size_t bytes, int device, bool may_use) {
  if (!has_device(device)) return Status::kInvalidDevice;
  const std::lock_guard lock(mutex_);
  const auto mappings = virtual_.mappings_of(reinterpret_cast<std::uintptr_t>(address), bytes);
  if (mappings.empty()) return Status::kInvalidValue;
  for (const std::uintptr_t at : mappings) {
    std::uint64_t& devices = virtual_.mapping(at).devices;
    devices = may_use ? devices | bit_of(device) : devices & ~bit_of(device);
  }
  know_mappings();
  return Status::kOk;
}

Status Machine::access_of(const void* address, int device, bool* out) {
  const std::lock_guard lock(mutex_);
  const auto* mapping = virtual_.find_mapping(reinterpret_cast<std::uintptr_t>(address));
  if (mapping == nullptr) return Status::kInvalidValue;
  *out = has_device(device) && (mapping->devices & bit_of(device)) != 0;
  return Status::kOk;
}

// Makes one record for each run, so that an access may span adjacent mappings.
void Machine::know_mappings() {
  for (const std::uintptr_t address : known_mappings_) allocations_.remove(address);
  known_mappings_.clear();
  for (const VirtualMemory::Run& run : virtual_.runs()) {
    Allocation allocation = describe(MemoryKind::kDevice, reinterpret_cast<void*>(run.address),
                                     run.size_bytes, run.device, 0);
    allocation.mapped_for = run.devices;
    allocations_.add({.allocation = allocation, .placement = nullptr});
    known_mappings_.push_back(run.address);
  }
}

}  // namespace uvmsim
