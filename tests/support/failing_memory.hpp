// Memory that runs out when a test says so: a program with failing_memory.cpp has an operator new
// of its own, of which one call fails.
#pragma once

#include <cstdint>

namespace uvm::testing {

// Which call of operator new on this thread fails, counted from now on; 0: none does. It is 0 again
// once that call has failed. Calls inside the fake machine are not counted.
extern thread_local long failing;

// Whether a call of operator new counts, asked while a failure is awaited; nullptr: all do.
extern bool (*counts_call)();

// Whether any call has failed on any thread.
bool has_any_failed();
void forget_failures();

// What operator new gave and operator delete did not take back yet, of all threads.
std::int64_t live_allocations();

}  // namespace uvm::testing
