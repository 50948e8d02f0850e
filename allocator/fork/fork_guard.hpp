// Prepares an allocator for a fork, and serves requests in a forked child (Note "Fork copies").
// forks.hpp has the order of all locks.
#pragma once

#include <cstddef>
#include <optional>

#include <uvmalloc/errors.hpp>
#include "allocator/cache/thread_caches.hpp"
#include "allocator/fork/child_memory.hpp"
#include "allocator/fork/fork_snapshot.hpp"
#include "allocator/small/small_arenas.hpp"
#include "allocator/state/heap_state.hpp"

namespace uvm {

class ForkGuard {
 public:
  ForkGuard(Machine& machine, HeapState& state, ThreadCaches& caches, SmallArenas& arenas)
      : machine_(machine), state_(state), caches_(caches), arenas_(arenas) {}
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;

  // before_fork() takes locks, which the other two functions release after the fork.
  void before_fork() noexcept UVM_NOT_ANALYSED;
  void after_fork_in_parent() noexcept UVM_NOT_ANALYSED;
  void after_fork_in_child() noexcept UVM_NOT_ANALYSED;

  // Serve a forked child from ordinary memory of the host. allocate_in_child() throws the same
  // exceptions as ChildMemory::allocate(). Both functions take the state lock themselves.
  void* allocate_in_child(Facade facade, std::size_t size_bytes);
  FreeResult free_in_child(void* address) noexcept;

 private:
  void copy_for_child(const LockedHeap& heap, std::size_t available_bytes);

  Machine& machine_;
  HeapState& state_;
  ThreadCaches& caches_;
  SmallArenas& arenas_;
  ForkSnapshot snapshot_;
  std::optional<ThreadCaches::StopTheWorld> stopped_;  // during a fork
  ChildMemory child_memory_ UVM_GUARDED_BY(state_);
};

}  // namespace uvm
