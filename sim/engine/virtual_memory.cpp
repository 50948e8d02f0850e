#include "sim/engine/virtual_memory.hpp"

#include <iterator>

namespace uvmsim {
namespace {

// Returns the entry that contains the address, in a map from addresses to sizes, or end().
template <class Map, class Size>
auto holder_of(Map& map, std::uintptr_t address, Size size_of) {
  auto after = map.upper_bound(address);
  if (after == map.begin()) return map.end();
  const auto before = std::prev(after);
  return address - before->first < size_of(before->second) ? before : map.end();
}

std::size_t size_of_reservation(std::size_t bytes) {
  return bytes;
}
std::size_t size_of_mapping(const VirtualMemory::Mapping& mapping) {
  return mapping.size_bytes;
}

}  // namespace

bool VirtualMemory::can_free(std::uintptr_t address, std::size_t bytes) const {
  const auto reservation = reservations_.find(address);
  if (reservation == reservations_.end() || reservation->second != bytes) return false;
  const auto mapping = mappings_.lower_bound(address);
  return mapping == mappings_.end() || mapping->first >= address + bytes;
}

PieceHandle VirtualMemory::add(const Piece& piece) {
  pieces_.emplace(next_handle_, piece);
  return next_handle_++;
}

VirtualMemory::Piece* VirtualMemory::find(PieceHandle handle) {
  const auto piece = pieces_.find(handle);
  return piece == pieces_.end() ? nullptr : &piece->second;
}

std::optional<VirtualMemory::Piece> VirtualMemory::take_unused(PieceHandle handle) {
  const auto piece = pieces_.find(handle);
  if (piece == pieces_.end() || !piece->second.is_unused()) return std::nullopt;
  const Piece taken = piece->second;
  pieces_.erase(piece);
  return taken;
}

bool VirtualMemory::can_map(std::uintptr_t address, std::size_t bytes) const {
  const auto reservation = holder_of(reservations_, address, size_of_reservation);
  if (reservation == reservations_.end() ||
      bytes > reservation->second - (address - reservation->first) ||
      find_mapping(address) != nullptr) {
    return false;
  }
  const auto next = mappings_.lower_bound(address);
  return next == mappings_.end() || next->first >= address + bytes;
}

void VirtualMemory::map(std::uintptr_t address, std::size_t bytes, PieceHandle handle) {
  mappings_[address] = {bytes, handle};
  ++pieces_.at(handle).mappings;
}

std::vector<std::uintptr_t> VirtualMemory::mappings_of(std::uintptr_t address,
                                                       std::size_t bytes) const {
  std::vector<std::uintptr_t> found;
  std::uintptr_t at = address;
  while (at < address + bytes) {
    const auto mapping = mappings_.find(at);
    if (mapping == mappings_.end()) return {};
    found.push_back(at);
    at += mapping->second.size_bytes;
  }
  if (at != address + bytes) found.clear();
  return found;
}

PieceHandle VirtualMemory::unmap(std::uintptr_t address) {
  const auto mapping = mappings_.find(address);
  const PieceHandle handle = mapping->second.piece;
  --pieces_.at(handle).mappings;
  mappings_.erase(mapping);
  return handle;
}

const VirtualMemory::Mapping* VirtualMemory::find_mapping(std::uintptr_t address) const {
  const auto mapping = holder_of(mappings_, address, size_of_mapping);
  return mapping == mappings_.end() ? nullptr : &mapping->second;
}

std::optional<VirtualMemory::Run> VirtualMemory::mapped_at(std::uintptr_t address) const {
  const auto mapping = holder_of(mappings_, address, size_of_mapping);
  if (mapping == mappings_.end()) return std::nullopt;
  const auto& [begin, found] = *mapping;
  return Run{begin, found.size_bytes, pieces_.at(found.piece).device, found.devices};
}

std::vector<VirtualMemory::Run> VirtualMemory::runs() const {
  std::vector<Run> runs;
  for (const auto& [address, mapping] : mappings_) {
    if (mapping.devices == 0) continue;
    const int device = pieces_.at(mapping.piece).device;
    Run* last = runs.empty() ? nullptr : &runs.back();
    if (last != nullptr && last->address + last->size_bytes == address && last->device == device &&
        last->devices == mapping.devices) {
      last->size_bytes += mapping.size_bytes;
    } else {
      runs.push_back({address, mapping.size_bytes, device, mapping.devices});
    }
  }
  return runs;
}

}  // namespace uvmsim
