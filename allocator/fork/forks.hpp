// What all allocators of the process do around a fork, and the order of all locks, in one place.
// The first allocator installs handlers of pthread_atfork(3).
//
// Before a fork the forking thread takes these locks. So the child finds them free, and what they
// guard whole.
//   1. the list of allocators: one fork at a time
//   2. of each allocator, in the order of their construction (no thread has locks of two):
//      SmallArenas, ThreadCaches with every cache (a stopped world), the state lock. With
//      these it copies live host blocks for the child.
//   3. the list that threads read when they end (ThreadCaches)
//   4. the keys of lines that are logged once (log.hpp)
// jemalloc takes its own locks after these: its handlers were installed before. Parent and child
// release them in the reverse order.
//
// Locks that are held while the device is waited for, or inside the driver, are not taken: a fork
// could wait for them for ever. They are those of live plans, releases, fences, pending hints, hint
// lanes, events and traces. No public function waits for one of them in a child
// (Inspection::in_forked_child()).
#pragma once

namespace uvm {

class ForkGuard;

class Forks {
 public:
  // Adds an allocator to all later forks. std::bad_alloc.
  static void add(ForkGuard* allocator);
  // Waits for the end of a fork in progress. The allocator need not have been added.
  static void remove(ForkGuard* allocator) noexcept;
};

}  // namespace uvm
