// A range of address space, mapped twice. The program uses the user view. Kernels and copies of the
// simulated machine use the device view, at a constant distance from the user view. Both views map
// one sparse memfd, so each byte exists only once, independently of where its page is resident by
// the masks. The user view gives no access to device memory and free addresses, so a touch by the
// host crashes, as on the real machine. Forked children inherit no view, as with the modelled
// driver's mappings. Core files exclude the views.
//
// Owns the memfd, the views and the free address lists; guarded by the machine's mutex.
#pragma once

#include <cstddef>
#include <cstdint>

#include "sim/engine/interval_allocator.hpp"
#include "sim/engine/units.hpp"

namespace uvmsim {

class Arena {
 public:
  enum class HostAccess { kNone, kReadWrite };

  // Reserves `bytes` of address space, or less if the limits of the process are lower. If nothing
  // can be reserved, prints a line, and size() is 0.
  Arena(const char* name, std::size_t bytes, HostAccess host_access);
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Returns the address in the user view, or 0 if address space is exhausted. An allocation of at
  // least 2 MiB gets its own 2 MiB blocks. A smaller allocation gets whole pages; small allocations
  // are side by side while the arena's first part has room. The memory reads as zeros.
  std::uintptr_t allocate(std::size_t bytes);

  // Frees the result of allocate() for the same size: drops the pages and removes the access to the
  // addresses.
  void free(std::uintptr_t address, std::size_t bytes);
  // free() in two steps: clear() drops the pages and removes the access; reuse() makes the
  // addresses available again.
  void clear(std::uintptr_t address, std::size_t bytes);
  void reuse(std::uintptr_t address, std::size_t bytes);

  std::byte* device_view(std::uintptr_t address) const;

  // The memfd, which another process may open and map.
  int memfd() const { return fd_; }

  // Maps a piece of `memfd`, at `offset`, into the device view of a range of whole pages. Returns
  // false, and changes nothing, if the system refuses. show_own() maps the arena's own memfd at the
  // range again.
  bool show(std::uintptr_t address, std::size_t bytes, int memfd, std::size_t offset);
  bool show_own(std::uintptr_t address, std::size_t bytes) {
    return show(address, bytes, fd_, offset_of(address));
  }

  // The start of the user view.
  std::uintptr_t user_base() const { return user_base_; }

  // Returns the position of an address in the arena.
  std::size_t offset_of(std::uintptr_t address) const { return address - user_base_; }
  std::size_t size() const { return size_; }

  // Returns whether the range overlaps one of the views, free addresses included.
  bool meets(std::uintptr_t address, std::size_t bytes) const;

  // Closes the memfd. A forked child, which has no views, calls this, so that the pages do not
  // outlive the parent.
  void abandon();

 private:
  struct Part {
    std::size_t unit;  // granularity of sizes in this part
    std::size_t begin = 0;
    IntervalAllocator intervals{0};
  };
  std::uintptr_t allocate_in(Part& part, std::size_t bytes);
  void map_views(const char* name);
  const char* try_to_map(const char* name);

  HostAccess host_access_;
  std::size_t size_;
  std::uintptr_t user_base_ = 0;
  std::uintptr_t device_base_ = 0;
  int fd_ = -1;
  Part small_{kPageBytes};   // the first part, for small allocations
  Part large_{kBlockBytes};  // the rest, for larger allocations
};

}  // namespace uvmsim
