// The source of a small arena's segments, implemented by the owner of spans. The arena calls it
// from inside jemalloc.
//
// take() and give_back() are called with locks of jemalloc held (see SmallArena). So they take no
// lock under which an arena is called, call no arena themselves, and make no driver call. A source
// without a lock is safe, and so is a source used only under the lock that guards its arena.
#pragma once

#include <cstddef>

namespace uvm {

class ExtentSource {
 public:
  virtual ~ExtentSource() = default;

  // A segment: SmallArena::kSegmentBytes at a multiple of that, for this arena alone until it is
  // given back; nullptr if there is none now. Its contents are never read.
  virtual void* take() noexcept = 0;

  // A segment that take() returned.
  virtual void give_back(void* segment) noexcept = 0;

  // Whether the address lies in a segment that take() has returned. Called without jemalloc's
  // locks.
  virtual bool owns(const void* address) const noexcept = 0;
};

}  // namespace uvm
