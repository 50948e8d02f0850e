// The interface through which a small arena gets its segments. The owner of spans implements it.
// The arena calls it from inside jemalloc.
//
// take() and give_back() are called while jemalloc holds locks (see SmallArena). So they call no
// arena and no driver, and take no lock under which an arena is called. An implementation is safe
// if it takes no lock, or if it is used only under the lock that guards its arena.
#pragma once

#include <cstddef>

namespace uvm {

class ExtentSource {
 public:
  virtual ~ExtentSource() = default;

  // Returns a segment of SmallArena::kSegmentBytes, aligned to its size, or nullptr if none is
  // available. The arena owns the segment until the arena calls give_back(). The segment's contents
  // are never read.
  virtual void* take() noexcept = 0;

  virtual void give_back(void* segment) noexcept = 0;

  // Returns whether the address is in a segment that take() returned. Called while jemalloc holds
  // no lock.
  virtual bool owns(const void* address) const noexcept = 0;
};

}  // namespace uvm
