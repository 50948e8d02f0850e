#include "preload/virtual_memory.hpp"

#include <algorithm>
#include <exception>
#include <iterator>
#include <stdexcept>
#include <string>
#include <utility>

#include "allocator/interface.hpp"
#include "runtime/log.hpp"
#include "storage/pages.hpp"

namespace uvm::preload {
namespace {

using Result = VirtualMemory::Result;

bool is_whole(std::size_t size_bytes) {
  return size_bytes != 0 && size_bytes % kPageBytes == 0;
}
std::uint64_t bit_of(int device) {
  return std::uint64_t{1} << device;
}
char* pointer_to(std::uintptr_t address) {
  return reinterpret_cast<char*>(address);
}

// Returns the entry that contains the address, in a map from addresses to structures with a size.
template <class Map>
auto holder_of(Map& map, std::uintptr_t address) {
  auto after = map.upper_bound(address);
  if (after == map.begin()) return map.end();
  const auto before = std::prev(after);
  return address - before->first < before->second.size_bytes ? before : map.end();
}

// A page that is never mapped ends each range, because a driver does not copy across the border of
// two managed allocations. So a program that requests the addresses behind a range gets other
// addresses.
constexpr std::size_t kGapBytes = kPageBytes;

bool overlap(const VirtualMemory::Range& left, const VirtualMemory::Range& right) {
  return left.address < right.address + right.size_bytes &&
         right.address < left.address + left.size_bytes;
}

}  // namespace

VirtualMemory::VirtualMemory(CachingManagedAllocator& allocator, GroupNumber group)
    : allocator_(allocator), addresses_(allocator.engine()), group_(group) {}

template <class Action>
Result VirtualMemory::change(const char* call, Action action) noexcept {
  const std::lock_guard lock(mutex_);
  if (std::exchange(is_changing_, true)) return Result::kNotPermitted;
  Result result = Result::kOutOfMemory;
  try {
    result = action();
  } catch (const std::exception& error) {
    log(LogLevel::kInfo, "{} failed: {}", call, error.what());
  }
  is_changing_ = false;
  return result;
}

bool VirtualMemory::has_device(int device) const noexcept {
  return device >= 0 && device < static_cast<int>(allocator_.inspection().devices().size());
}

bool VirtualMemory::has_reserved(std::uintptr_t address) const noexcept {
  if (!has_any_.load(std::memory_order_relaxed)) return false;
  const std::lock_guard lock(mutex_);
  return holder_of(reservations_, address) != reservations_.end();
}

bool VirtualMemory::is_unmapped(std::uintptr_t address) const noexcept {
  if (!has_any_.load(std::memory_order_relaxed)) return false;
  const std::lock_guard lock(mutex_);
  const auto mapping = mapping_at(address);
  const bool is_usable = mapping != mappings_.end() && mapping->second.devices != 0;
  return !is_usable && holder_of(reservations_, address) != reservations_.end();
}

VirtualMemory::Piece* VirtualMemory::piece_of(Handle handle) noexcept {
  const auto piece = pieces_.find(handle);
  return piece == pieces_.end() ? nullptr : &piece->second;
}

VirtualMemory::Mappings::const_iterator VirtualMemory::mapping_at(
    std::uintptr_t address) const noexcept {
  return holder_of(mappings_, address);
}

bool VirtualMemory::can_map(std::uintptr_t address, std::size_t size_bytes) const noexcept {
  const auto reservation = holder_of(reservations_, address);
  if (reservation == reservations_.end() ||
      size_bytes > reservation->second.size_bytes - (address - reservation->first) ||
      mapping_at(address) != mappings_.end()) {
    return false;
  }
  const auto next = mappings_.lower_bound(address);
  return next == mappings_.end() || next->first >= address + size_bytes;
}

VirtualMemory::Mappings::iterator VirtualMemory::mappings_of(std::uintptr_t address,
                                                             std::size_t size_bytes) noexcept {
  const auto first = mappings_.find(address);
  std::size_t found_bytes = 0;
  for (auto mapping = first; mapping != mappings_.end() && found_bytes < size_bytes &&
                             mapping->first == address + found_bytes;
       ++mapping) {
    found_bytes += mapping->second.size_bytes;
  }
  return found_bytes == size_bytes && size_bytes != 0 ? first : mappings_.end();
}

// ---- addresses

Result VirtualMemory::reserve(int device, std::size_t size_bytes, std::size_t alignment_bytes,
                              std::uintptr_t* out) noexcept {
  const bool is_power = (alignment_bytes & (alignment_bytes - 1)) == 0;
  if (!is_whole(size_bytes) || !is_power) return Result::kInvalidValue;
  if (alignment_bytes > kPageBytes) return Result::kNotSupported;
  if (size_bytes > kLargestRequest - kGapBytes) return Result::kOutOfMemory;
  return change("a reservation of addresses", [&] {
    char* const base = addresses_.reserve(device, size_bytes + kGapBytes);
    const auto address = reinterpret_cast<std::uintptr_t>(base);
    try {
      reservations_[address] = {size_bytes, device};
    } catch (const std::bad_alloc&) {
      addresses_.release(base);
      throw;
    }
    has_any_ = true;
    *out = address;
    return Result::kOk;
  });
}

Result VirtualMemory::free_addresses(std::uintptr_t address, std::size_t size_bytes) noexcept {
  return change("a free of addresses", [&] {
    const auto reservation = reservations_.find(address);
    if (reservation == reservations_.end() || reservation->second.size_bytes != size_bytes)
      return Result::kInvalidValue;
    const auto mapping = mappings_.lower_bound(address);
    if (mapping != mappings_.end() && mapping->first < address + size_bytes)
      return Result::kInvalidValue;
    clear({address, size_bytes});
    addresses_.release(pointer_to(address));
    reservations_.erase(reservation);
    return Result::kOk;
  });
}

// ---- pieces

Result VirtualMemory::create(int device, std::size_t size_bytes, Handle* out) noexcept {
  if (!has_device(device)) return Result::kInvalidDevice;
  if (!is_whole(size_bytes)) return Result::kInvalidValue;
  if (size_bytes > kLargestRequest) return Result::kOutOfMemory;
  return change("cuMemCreate", [&] {
    if (would_fill_a_large_range(device, size_bytes)) return Result::kOutOfMemory;
    addresses_.promise(device, size_bytes);
    try {
      pieces_[next_] = {.device = device, .size_bytes = size_bytes};
    } catch (const std::bad_alloc&) {
      addresses_.withdraw(device, size_bytes);
      throw;
    }
    *out = next_++;
    return Result::kOk;
  });
}

// Returns whether the piece completes the memory of an unused range that is larger than the device.
// For a request larger than such a range, PyTorch's expandable segments create pieces for the whole
// range, and continue behind its end unless a piece is refused.
bool VirtualMemory::would_fill_a_large_range(int device, std::size_t size_bytes) const {
  const std::size_t device_bytes =
      allocator_.inspection().devices()[static_cast<std::size_t>(device)].total_bytes;
  std::size_t least_bytes = SIZE_MAX;  // of unused ranges larger than the device
  for (const auto& [address, reservation] : reservations_) {
    const auto mapping = mappings_.lower_bound(address);
    const bool is_unused =
        mapping == mappings_.end() || mapping->first >= address + reservation.size_bytes;
    if (is_unused && reservation.size_bytes > device_bytes)
      least_bytes = std::min(least_bytes, reservation.size_bytes);
  }
  if (least_bytes == SIZE_MAX) return false;
  std::size_t unmapped_bytes = size_bytes;
  for (const auto& [handle, piece] : pieces_) {
    if (piece.device == device && !piece.is_mapped) unmapped_bytes += piece.size_bytes;
  }
  return unmapped_bytes >= least_bytes;
}

Result VirtualMemory::release(Handle handle) noexcept {
  return change("cuMemRelease", [&] {
    Piece* const piece = piece_of(handle);
    if (piece == nullptr || piece->handles == 0) return Result::kInvalidValue;
    --piece->handles;
    drop_if_unused(handle);
    return Result::kOk;
  });
}

void VirtualMemory::drop_if_unused(Handle handle) noexcept {
  const auto found = pieces_.find(handle);
  Piece& piece = found->second;
  if (piece.handles != 0 || piece.is_mapped) return;
  if (piece.placed.size_bytes != 0) addresses_.remove(pointer_to(piece.placed.address));
  if (piece.promised_bytes() != 0) addresses_.withdraw(piece.device, piece.promised_bytes());
  drop_aside(piece);
  pieces_.erase(found);
}

Result VirtualMemory::retain(std::uintptr_t address, Handle* out) noexcept {
  const std::lock_guard lock(mutex_);
  const auto mapping = mapping_at(address);
  if (mapping == mappings_.end()) return Result::kInvalidValue;
  ++pieces_.at(mapping->second.piece).handles;
  *out = mapping->second.piece;
  return Result::kOk;
}

std::optional<int> VirtualMemory::device_of(Handle handle) const noexcept {
  const std::lock_guard lock(mutex_);
  const auto piece = pieces_.find(handle);
  if (piece == pieces_.end()) return std::nullopt;
  return piece->second.device;
}

// ---- bytes

// The bytes belong to no mapping, and the call that ended their mapping has waited for the device.
// So no work uses the bytes, and the host may copy them even while a capture forbids waits.
void VirtualMemory::copy(int device, char* to, const char* from, std::size_t size_bytes) {
  const DeviceRuntime& runtime = allocator_.inspection().runtime();
  const bool may_wait = allocator_.streams().wait_for_device(device) &&
                        runtime.copy(device, to, from, size_bytes, nullptr).ok() &&
                        runtime.synchronize_stream(device, nullptr).ok();
  if (!may_wait) std::copy_n(from, size_bytes, to);
}

VirtualMemory::Range VirtualMemory::make_aside(int device, std::size_t size_bytes) {
  char* const base = addresses_.reserve(device, size_bytes);
  addresses_.promise_beyond_limits(device, size_bytes);
  try {
    addresses_.place(device, base, size_bytes);
  } catch (const std::exception&) {
    addresses_.withdraw(device, size_bytes);
    addresses_.release(base);
    throw;
  }
  return {reinterpret_cast<std::uintptr_t>(base), size_bytes};
}

void VirtualMemory::drop_aside(Piece& piece) noexcept {
  const Range aside = std::exchange(piece.aside, {});
  if (aside.size_bytes == 0) return;
  addresses_.remove(pointer_to(aside.address));
  addresses_.release(pointer_to(aside.address));
}

// Moves all bytes of the piece to a separate range.
void VirtualMemory::put_aside(Piece& piece) {
  if (piece.placed.size_bytes == 0) return;
  char* const from = pointer_to(piece.placed.address);
  if (piece.aside.size_bytes == 0) piece.aside = make_aside(piece.device, piece.placed.size_bytes);
  copy(piece.device, pointer_to(piece.aside.address), from, piece.placed.size_bytes);
  piece.placed = {};
  addresses_.remove(from);
}

// Moves unmapped pieces out of the range.
void VirtualMemory::clear(const Range& range) {
  for (auto& [handle, piece] : pieces_) {
    if (!piece.is_mapped && overlap(piece.placed, range)) put_aside(piece);
  }
}

// Moves the first bytes of the piece to the range, which contains no other piece.
void VirtualMemory::place(Piece& piece, const Range& range) {
  put_aside(piece);
  char* const to = pointer_to(range.address);
  const std::size_t aside_bytes = piece.aside.size_bytes;
  if (aside_bytes != 0) addresses_.promise_beyond_limits(piece.device, range.size_bytes);
  try {
    addresses_.place(piece.device, to, range.size_bytes);
  } catch (const std::exception&) {
    if (aside_bytes != 0) addresses_.withdraw(piece.device, range.size_bytes);
    throw;
  }
  piece.placed = range;
  if (aside_bytes == 0) return;
  copy(piece.device, to, pointer_to(piece.aside.address), std::min(range.size_bytes, aside_bytes));
  if (range.size_bytes < aside_bytes) return;
  drop_aside(piece);
  if (range.size_bytes > aside_bytes)
    addresses_.withdraw(piece.device, range.size_bytes - aside_bytes);
}

// ---- mappings

Result VirtualMemory::map(std::uintptr_t address, std::size_t size_bytes, Handle handle) noexcept {
  return change("cuMemMap", [&] {
    Piece* const piece = piece_of(handle);
    if (piece == nullptr || !is_whole(size_bytes) || size_bytes > piece->size_bytes ||
        address % kPageBytes != 0 || !can_map(address, size_bytes)) {
      return Result::kInvalidValue;
    }
    if (piece->is_mapped) return Result::kNotSupported;
    const Range range{address, size_bytes};
    const auto mapping = mappings_.emplace(address, Mapping{size_bytes, handle}).first;
    const bool is_there =
        piece->placed.address == address && piece->placed.size_bytes == size_bytes;
    try {
      if (!is_there) {
        if (!addresses_.is_free(pointer_to(address), size_bytes)) clear(range);
        place(*piece, range);
        if (group_ != GroupNumber{}) Groups::of(allocator_)->add(group_, pointer_to(address));
      }
    } catch (const std::exception&) {
      mappings_.erase(mapping);
      throw;
    }
    piece->is_mapped = true;
    return Result::kOk;
  });
}

Result VirtualMemory::unmap(std::uintptr_t address, std::size_t size_bytes) noexcept {
  return change("cuMemUnmap", [&] {
    auto mapping = mappings_of(address, size_bytes);
    if (mapping == mappings_.end()) return Result::kInvalidValue;
    for (int device = 0; device < allocator_.inspection().runtime().device_count(); ++device)
      allocator_.streams().wait_for_device(device);
    while (mapping != mappings_.end() && mapping->first < address + size_bytes) {
      const Handle handle = mapping->second.piece;
      mapping = mappings_.erase(mapping);
      pieces_.at(handle).is_mapped = false;
      drop_if_unused(handle);
    }
    return Result::kOk;
  });
}

Result VirtualMemory::set_access(std::uintptr_t address, std::size_t size_bytes, int device,
                                 bool may_use) noexcept {
  if (!has_device(device)) return Result::kInvalidDevice;
  return change("cuMemSetAccess", [&] {
    auto mapping = mappings_of(address, size_bytes);
    if (mapping == mappings_.end()) return Result::kInvalidValue;
    for (; mapping != mappings_.end() && mapping->first < address + size_bytes; ++mapping) {
      std::uint64_t& devices = mapping->second.devices;
      devices = may_use ? devices | bit_of(device) : devices & ~bit_of(device);
    }
    return Result::kOk;
  });
}

Result VirtualMemory::get_access(std::uintptr_t address, int device, bool* out) const noexcept {
  const std::lock_guard lock(mutex_);
  const auto mapping = mapping_at(address);
  if (mapping == mappings_.end()) return Result::kInvalidValue;
  *out = has_device(device) && (mapping->second.devices & bit_of(device)) != 0;
  return Result::kOk;
}

std::optional<VirtualMemory::Found> VirtualMemory::find(std::uintptr_t address) const noexcept {
  const std::lock_guard lock(mutex_);
  const auto holder = mapping_at(address);
  if (holder == mappings_.end() || holder->second.devices == 0) return std::nullopt;
  const auto continues = [&](const auto& left, const auto& right) {
    return left.first + left.second.size_bytes == right.first &&
           left.second.devices == right.second.devices &&
           device_of(left.second) == device_of(right.second);
  };
  auto first = holder;
  while (first != mappings_.begin() && continues(*std::prev(first), *first)) --first;
  auto last = holder;
  while (std::next(last) != mappings_.end() && continues(*last, *std::next(last))) ++last;
  return Found{.run = {first->first, last->first + last->second.size_bytes - first->first},
               .mapping = {holder->first, holder->second.size_bytes},
               .device = device_of(holder->second)};
}

void VirtualMemory::forget_device(int device) noexcept {
  const std::lock_guard lock(mutex_);
  const auto is_lost = [&](std::uintptr_t address) {
    const auto reservation = holder_of(reservations_, address);
    return reservation != reservations_.end() && reservation->second.device == device;
  };
  for (auto at = pieces_.begin(); at != pieces_.end();) {
    Piece& piece = at->second;
    const bool was_placed = piece.placed.size_bytes != 0;
    const bool is_destroyed = was_placed && is_lost(piece.placed.address);
    if (piece.device != device && !is_destroyed) {
      ++at;
      continue;
    }
    if (was_placed && !is_destroyed) addresses_.remove(pointer_to(piece.placed.address));
    if (piece.promised_bytes() != 0) addresses_.withdraw(piece.device, piece.promised_bytes());
    if (piece.device != device) drop_aside(piece);
    at = pieces_.erase(at);
  }
  std::erase_if(mappings_,
                [&](const auto& entry) { return !pieces_.contains(entry.second.piece); });
  std::erase_if(reservations_, [&](const auto& entry) { return entry.second.device == device; });
}

}  // namespace uvm::preload
