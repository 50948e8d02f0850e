// A stretch of address space whose memory has two addresses. The program knows the user view.
// Kernels and copies of the simulated machine use the device view, at a constant distance. Both
// show the pages of one sparse memfd, so there is one copy of the bytes whatever the masks say
// about residency. The host cannot touch device memory: its user view has no access, so a touch
// crashes, as on the real machine. User views of free addresses have no access either. A forked
// child inherits nothing of an arena, as with the modelled driver's mappings. A core file holds
// nothing of it.
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

  // Reserves `bytes` of address space, or less if the process may not have so much. If it gets
  // none, the arena prints a line and has a size of 0.
  Arena(const char* name, std::size_t bytes, HostAccess host_access);
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Returns the address in the user view, or 0 if address space is exhausted. From 2 MiB on an
  // allocation has 2 MiB blocks of its own. A smaller one has whole pages, beside other small
  // allocations if there is room among them. The memory reads as zeros.
  std::uintptr_t allocate(std::size_t bytes);

  // Gives back what allocate returned for the same size: its pages are dropped and its address has
  // no access.
  void free(std::uintptr_t address, std::size_t bytes);
  // The same in two parts: the bytes and the access end; the addresses may be given out again.
  void clear(std::uintptr_t address, std::size_t bytes);
  void reuse(std::uintptr_t address, std::size_t bytes);

  std::byte* device_view(std::uintptr_t address) const;

  // The memfd, which another process may open and map.
  int memfd() const { return fd_; }

  // Makes the device view of a range show bytes of another arena's memfd, or its own again. Both
  // ends are whole pages. False where the system cannot, and then nothing is changed.
  bool show(std::uintptr_t address, std::size_t bytes, int memfd, std::size_t offset);
  bool show_own(std::uintptr_t address, std::size_t bytes) {
    return show(address, bytes, fd_, offset_of(address));
  }

  // Where the program's view begins.
  std::uintptr_t user_base() const { return user_base_; }

  // Position of an address in the arena.
  std::size_t offset_of(std::uintptr_t address) const { return address - user_base_; }
  std::size_t size() const { return size_; }

  // Whether any of the arena's addresses, free ones too, is in the range.
  bool meets(std::uintptr_t address, std::size_t bytes) const;

  // In a forked child, where the views are absent: closes the memfd, so that its pages live no
  // longer than the parent.
  void abandon();

 private:
  struct Part {
    std::size_t unit;  // of the sizes there
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
  Part small_{kPageBytes};   // from the beginning on, for small allocations
  Part large_{kBlockBytes};  // the rest, for others
};

}  // namespace uvmsim
