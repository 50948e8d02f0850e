// What is done around a fork, for all allocators of the process: the order of all locks, in one
// place. Handlers of pthread_atfork(3) are installed with the first allocator.
//
// Before a fork, the forking thread takes, so that the child finds them free and what they guard
// whole:
//   1. the list of allocators: one fork at a time
//   2. of each allocator, in the order in which they were made (no thread has locks of two):
//      SmallArenas, ThreadCaches with every cache (a stopped world), the state lock. With these it
//      copies for the child what that is to find.
//   3. the list that threads look into when they end (ThreadCaches)
//   4. the keys of lines that are said once (log.hpp)
// jemalloc takes its own after these: its handlers were installed before ours. Both sides release
// them in the reverse order.
//
// Not taken are locks that are held while the device is waited for, or inside the driver, since a
// fork could wait for ever: those of live plans, of releases, of fences, of pending hints, of hint
// lanes, events and traces. No public function waits for one of them in a child
// (CachingManagedAllocator::in_forked_child()).
#pragma once

namespace uvm {

class ForkGuard;

class Forks {
 public:
  // From now on the allocator takes part in each fork. std::bad_alloc.
  static void add(ForkGuard* allocator);
  // Waits for a fork that is under way. An allocator that was not added is fine.
  static void remove(ForkGuard* allocator) noexcept;
};

}  // namespace uvm
