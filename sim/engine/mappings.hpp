// Device memory that the program itself maps: reserved addresses, pieces of memory, and mappings of
// pieces. Sizes are multiples of kMappingGranularityBytes.
#pragma once

#include <cstddef>
#include <optional>

#include "sim/engine/export.hpp"
#include "sim/engine/status.hpp"
#include "sim/engine/virtual_memory.hpp"

namespace uvmsim {

class SharedState;

class UVMSIM_EXPORT Mappings {
 public:
  explicit Mappings(SharedState& shared) : shared_(shared) {}

  Status reserve_addresses(std::size_t bytes, std::size_t alignment_bytes, void** out);
  // Returns kInvalidValue if memory is mapped in the range.
  Status free_addresses(void* address, std::size_t bytes);
  // A piece lives until its handles are released and its mappings removed.
  Status create_piece(int device, std::size_t bytes, PieceHandle* out);
  Status release_piece(PieceHandle handle);
  Status retain_piece(const void* address, PieceHandle* out);
  std::optional<int> device_of_piece(PieceHandle handle);
  // Devices may use a new mapping only after set_access().
  Status map_piece(void* address, std::size_t bytes, PieceHandle handle);
  // The range must consist of whole mappings. Waits for all devices.
  Status unmap_pieces(void* address, std::size_t bytes);
  Status set_access(const void* address, std::size_t bytes, int device, bool may_use);
  Status access_of(const void* address, int device, bool* out);
  // Returns the mapping that contains the address, if the program has mapped memory at the address.
  std::optional<VirtualMemory::Run> mapped_at(const void* address);

 private:
  SharedState& shared_;
};

}  // namespace uvmsim
