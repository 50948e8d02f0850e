// Where a small arena gets its segments from, and where they go again. Implemented by whoever owns
// spans; called by the arena from inside jemalloc.
//
// Both functions are called with locks of jemalloc's held (see SmallArena). So they take no lock
// under which anybody calls an arena, call no arena themselves, and make no driver call. A source
// without any lock, or one that is only used under the lock that its arena is used under, is the
// safe kind.
#pragma once

#include <cstddef>

namespace uvm {

class ExtentSource {
 public:
  virtual ~ExtentSource() = default;

  // A run of `size_bytes`, a multiple of 2 MiB, that starts on a 2 MiB boundary and is nobody
  // else's until it is given back; nullptr: none now. Its contents are never looked at.
  virtual void* take(std::size_t size_bytes) noexcept = 0;

  // A run that take() returned, whole.
  virtual void give_back(void* run, std::size_t size_bytes) noexcept = 0;
};

}  // namespace uvm
