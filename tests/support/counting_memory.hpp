// Memory for a StorageArena, from malloc: counted, and refused when a test says so.
#pragma once

#include <cstdlib>
#include <map>
#include <new>

#include "pipelines/plans/arena_memory.hpp"

namespace uvm::testing {

class CountingMemory final : public ArenaMemory {
 public:
  void* allocate(std::size_t size_bytes, std::size_t alignment_bytes) override {
    if (refuses) throw std::bad_alloc();
    void* address = nullptr;
    if (alignment_bytes < sizeof(void*)) alignment_bytes = sizeof(void*);
    if (posix_memalign(&address, alignment_bytes, size_bytes) != 0) throw std::bad_alloc();
    ++allocations;
    live[address] = size_bytes;
    live_bytes += size_bytes;
    return address;
  }
  void free(void* address, std::size_t size_bytes) noexcept override {
    const auto found = live.find(address);
    if (found == live.end() || found->second != size_bytes) std::abort();
    live.erase(found);
    live_bytes -= size_bytes;
    std::free(address);
  }

  bool refuses = false;
  int allocations = 0;
  std::size_t live_bytes = 0;
  std::map<void*, std::size_t> live;
};

}  // namespace uvm::testing
