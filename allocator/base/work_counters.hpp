// Counts a thread's searches and look-ups, so that tests can limit them. Does nothing with NDEBUG.
#pragma once

#include <cstdint>

namespace uvm {

struct WorkCounters {
  std::uint64_t pool_searches = 0;  // searches of a pool's own free blocks
  std::uint64_t look_ups = 0;       // look-ups of the block at an address
};

#ifndef NDEBUG
inline thread_local WorkCounters work_counters;
inline void count_work(std::uint64_t WorkCounters::*counter) {
  ++(work_counters.*counter);
}
#else
inline void count_work(std::uint64_t WorkCounters::*) {}
#endif

}  // namespace uvm
