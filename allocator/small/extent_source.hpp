// Where a small arena gets its segments from, and where they go again. Implemented by whoever owns
// spans; called by the arena from inside jemalloc.
//
// take() and give_back() are called with locks of jemalloc's held (see SmallArena). So they take no
// lock under which anybody calls an arena, call no arena themselves, and make no driver call. A
// source without any lock, or one that is only used under the lock that its arena is used under, is
// the safe kind.
#pragma once

#include <cstddef>

namespace uvm {

class ExtentSource {
 public:
  virtual ~ExtentSource() = default;

  // A segment: SmallArena::kSegmentBytes at a multiple of that, nobody else's until they are given
  // back; nullptr: none now. Its contents are never looked at.
  virtual void* take() noexcept = 0;

  // A segment that take() returned.
  virtual void give_back(void* segment) noexcept = 0;

  // Whether the address lies in a segment that take() has returned. Called without jemalloc's
  // locks.
  virtual bool owns(const void* address) const noexcept = 0;
};

}  // namespace uvm
