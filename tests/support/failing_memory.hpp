// Memory that runs out when a test says so. A program with failing_memory.cpp replaces operator
// new, and one call of that operator fails.
#pragma once

#include <cstdint>

namespace uvm::testing {

// Which call of operator new on this thread fails, counted from now on; 0: no call fails. The value
// is 0 again after that call has failed. Calls inside the fake machine are not counted.
extern thread_local long failing;
// How many calls in a row fail: the one that `failing` counts, and those that follow it. 1 again
// after them.
extern thread_local long failing_in_a_row;

// While `failing` counts, returns whether a call of operator new counts. nullptr: all calls count.
extern bool (*counts_call)();

// Returns whether any call has failed on any thread.
bool has_any_failed();
void forget_failures();

// Returns how many allocations of operator new are not deleted yet, over all threads.
std::int64_t live_allocations();

}  // namespace uvm::testing
