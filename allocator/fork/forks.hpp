// Prepares all allocators of the process for a fork, and takes all locks around the fork in one
// order. The first allocator installs the handlers (pthread_atfork(3)).
//
// Before a fork the forking thread takes these locks, so that in the child the locks are free and
// the guarded data is consistent.
//   1. the list of allocators: one fork at a time
//   2. for each allocator, in the order of construction (no thread holds locks of two allocators):
//      SmallArenas, ThreadCaches with every cache (a stopped world), the state lock. Under these
//      locks the allocator copies live host blocks for the child.
//   3. the list that threads read when they end (ThreadCaches)
//   4. the keys of lines that are logged once (log.hpp)
// jemalloc takes its own locks after these, because its handlers were installed earlier. Parent and
// child release the locks in the reverse order.
//
// The forking thread takes no lock whose holder may be waiting for a device or be inside the
// driver, because the fork could then wait for ever. Such locks are those of live plans, releases,
// fences, pending hints, hint lanes, events and traces. No public function waits for such a lock in
// a child (Inspection::in_forked_child()).
#pragma once

namespace uvm {

class ForkGuard;

class Forks {
 public:
  // Includes an allocator in all later forks. Throws std::bad_alloc.
  static void add(ForkGuard* allocator);
  // Excludes an allocator from later forks, even if it was never added. Waits for the end of a fork
  // in progress.
  static void remove(ForkGuard* allocator) noexcept;
};

}  // namespace uvm
