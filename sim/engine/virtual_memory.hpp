// The program's own mappings of device memory: reserved addresses, pieces of memory with handles,
// and mappings of pieces at addresses. This class only keeps accounts; it maps no memory. Guarded
// by the machine's mutex.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "sim/engine/units.hpp"

namespace uvmsim {

using PieceHandle = std::uint64_t;

// Sizes and addresses of pieces, reservations and mappings are multiples of this.
inline constexpr std::size_t kMappingGranularityBytes = kBlockBytes;

class VirtualMemory {
 public:
  struct Piece {
    int device;
    std::size_t size_bytes;
    std::uintptr_t address;  // address of its bytes; not visible to the program
    int handles = 1;         // references that the program holds
    int mappings = 0;
    bool is_unused() const { return handles == 0 && mappings == 0; }
  };
  struct Mapping {
    std::size_t size_bytes;
    PieceHandle piece;
    std::uint64_t devices = 0;  // bit mask of the devices that may use the mapping
  };
  // Adjacent mappings of one device's memory with the same access.
  struct Run {
    std::uintptr_t address;
    std::size_t size_bytes;
    int device;
    std::uint64_t devices;
  };

  void reserve(std::uintptr_t address, std::size_t bytes) { reservations_[address] = bytes; }
  // Returns whether the range is a whole reservation without mappings.
  bool can_free(std::uintptr_t address, std::size_t bytes) const;
  void free(std::uintptr_t address) { reservations_.erase(address); }

  PieceHandle add(const Piece& piece);
  Piece* find(PieceHandle handle);
  // Removes and returns the record of an unused piece. Returns nullopt while the piece is in use.
  std::optional<Piece> take_unused(PieceHandle handle);

  // Returns whether the range is within one reservation and overlaps no mapping.
  bool can_map(std::uintptr_t address, std::size_t bytes) const;
  void map(std::uintptr_t address, std::size_t bytes, PieceHandle handle);
  // Returns the mappings that form the range exactly; empty if the range does not consist of whole
  // mappings.
  std::vector<std::uintptr_t> mappings_of(std::uintptr_t address, std::size_t bytes) const;
  Mapping& mapping(std::uintptr_t address) { return mappings_.at(address); }
  PieceHandle unmap(std::uintptr_t address);
  // Returns the mapping that contains the address, as a run with only this mapping.
  std::optional<Run> mapped_at(std::uintptr_t address) const;
  // Returns the mapping that contains the address, or nullptr.
  const Mapping* find_mapping(std::uintptr_t address) const;

  // Returns all runs that devices may use.
  std::vector<Run> runs() const;

 private:
  std::map<std::uintptr_t, std::size_t> reservations_;
  std::map<std::uintptr_t, Mapping> mappings_;
  std::map<PieceHandle, Piece> pieces_;
  PieceHandle next_handle_ = 1;
};

}  // namespace uvmsim
