// The program's virtual memory management (cuMemAddressReserve, cuMemCreate, cuMemMap and similar
// calls) in uvmalloc's memory: reserved addresses, pieces of memory with handles, and mappings of
// pieces. Sizes and addresses are multiples of kPageBytes.
//
// Differences from a driver: a piece has one mapping at a time; no handle leaves the process; a
// kernel may read addresses that have no mapping or no access. The bytes of a piece are in a block
// at its last mapping. The bytes stay at these addresses after the mapping has ended, as long as
// the program holds a handle. They move to a separate range if another piece is mapped at these
// addresses, or if the range is freed.
//
// Thread-safe. One lock serialises all calls, which may wait for devices. If a pressure callback
// runs inside one of these calls, calls that the callback makes are refused. No function throws.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <unordered_map>

#include <uvmalloc/groups.hpp>
#include "allocator/engine/reserved_addresses.hpp"

namespace uvm {
class CachingManagedAllocator;
}

namespace uvm::preload {

class VirtualMemory {
 public:
  // The numbers are the same in CUDA's driver, CUDA's runtime and HIP.
  enum class Result : std::uint16_t {
    kOk = 0,
    kInvalidValue = 1,
    kOutOfMemory = 2,
    kInvalidDevice = 101,
    kNotPermitted = 800,  // inside another call of the thread
    kNotSupported = 801,
  };
  using Handle = std::uint64_t;
  // Return whether a handle or an address belongs to uvmalloc. Others belong to the driver.
  static bool is_handle(Handle handle) { return handle >> kMarkShift == kMark; }
  bool has_reserved(std::uintptr_t address) const noexcept;
  // Returns whether the address is reserved, but no device may access it.
  bool is_unmapped(std::uintptr_t address) const noexcept;

  // Mapped pieces join the group, unless it is 0.
  VirtualMemory(CachingManagedAllocator& allocator, GroupNumber group);
  VirtualMemory(const VirtualMemory&) = delete;
  VirtualMemory& operator=(const VirtualMemory&) = delete;

  Result reserve(int device, std::size_t size_bytes, std::size_t alignment_bytes,
                 std::uintptr_t* out) noexcept;
  Result free_addresses(std::uintptr_t address, std::size_t size_bytes) noexcept;

  Result create(int device, std::size_t size_bytes, Handle* out) noexcept;
  Result release(Handle handle) noexcept;
  Result retain(std::uintptr_t address, Handle* out) noexcept;
  std::optional<int> device_of(Handle handle) const noexcept;

  Result map(std::uintptr_t address, std::size_t size_bytes, Handle handle) noexcept;
  Result unmap(std::uintptr_t address, std::size_t size_bytes) noexcept;
  Result set_access(std::uintptr_t address, std::size_t size_bytes, int device,
                    bool may_use) noexcept;
  Result get_access(std::uintptr_t address, int device, bool* out) const noexcept;

  struct Range {
    std::uintptr_t address = 0;
    std::size_t size_bytes = 0;
  };
  struct Found {
    Range run;      // the adjacent mappings with the same device and access
    Range mapping;  // the mapping in `run` that contains the address
    int device = 0;
  };
  // Returns the mapping of the address, or nullopt if no device may access the address.
  std::optional<Found> find(std::uintptr_t address) const noexcept;

  // Call after the device was reset, which destroyed its memory and uvmalloc's blocks in it.
  void forget_device(int device) noexcept;

 private:
  static constexpr int kMarkShift = 48;
  static constexpr Handle kMark = 0x7576;

  struct Reservation {
    std::size_t size_bytes = 0;
    int device = 0;
  };
  struct Mapping {
    std::size_t size_bytes = 0;
    Handle piece = 0;
    std::uint64_t devices = 0;  // bit mask of the devices that may access the mapping
  };
  // The first bytes of a piece are in `placed`, at addresses of the program. The bytes after them
  // are in `aside`, a separate range that is larger. The remaining bytes were never mapped, and are
  // only promised.
  struct Piece {
    int device = 0;
    std::size_t size_bytes = 0;
    int handles = 1;  // references that the program holds
    bool is_mapped = false;
    Range placed = {};
    Range aside = {};
    std::size_t promised_bytes() const {
      return size_bytes - std::max(placed.size_bytes, aside.size_bytes);
    }
  };
  using Mappings = std::map<std::uintptr_t, Mapping>;

  // Runs `action` under the lock. Returns its result, or the result that corresponds to its
  // exception.
  template <class Action>
  Result change(const char* call, Action action) noexcept;
  bool has_device(int device) const noexcept;
  Piece* piece_of(Handle handle) noexcept;
  bool can_map(std::uintptr_t address, std::size_t size_bytes) const noexcept;
  Mappings::const_iterator mapping_at(std::uintptr_t address) const noexcept;
  // Returns the first of the mappings that form the range exactly, or end() if none do.
  Mappings::iterator mappings_of(std::uintptr_t address, std::size_t size_bytes) noexcept;
  int device_of(const Mapping& mapping) const { return pieces_.at(mapping.piece).device; }

  // Move bytes. If a function throws for lack of memory or addresses, no bytes are lost.
  void place(Piece& piece, const Range& range);
  void put_aside(Piece& piece);
  void clear(const Range& range);
  void copy(int device, char* to, const char* from, std::size_t size_bytes);
  // Makes a range with memory of the device, beyond the limits.
  Range make_aside(int device, std::size_t size_bytes);
  void drop_aside(Piece& piece) noexcept;
  bool would_fill_a_large_range(int device, std::size_t size_bytes) const;
  // Removes a piece and its memory if the piece has no handle and no mapping.
  void drop_if_unused(Handle handle) noexcept;

  CachingManagedAllocator& allocator_;
  ReservedAddresses addresses_;
  const GroupNumber group_;
  mutable std::recursive_mutex mutex_;  // recursive, because a pressure callback may query
  bool is_changing_ = false;
  std::atomic<bool> has_any_ = false;  // a range was reserved; most programs never reserve one
  std::map<std::uintptr_t, Reservation> reservations_;
  Mappings mappings_;
  std::unordered_map<Handle, Piece> pieces_;
  Handle next_ = kMark << kMarkShift;
};

}  // namespace uvm::preload
