// jemalloc in its fastest form for small blocks of address space. It has its own arena with an
// explicit thread cache; blocks are aligned to 512 bytes and freed with their size. A reference for
// pairs of one thread, not an allocator of device memory: it has no devices, streams or budget.
// Owns the arena and the cache; never releases address space.
#pragma once

#include <cuda_runtime_api.h>
#include <jemalloc/jemalloc.h>
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <stdexcept>
#include <string>

#include "../request.hpp"

namespace uvm::bench {

class JemallocAdapter {
 public:
  static constexpr const char* kName = "jemalloc";
  static constexpr bool kMeasuresMetadata = false;
  static std::string version() { return JEMALLOC_VERSION; }

  explicit JemallocAdapter(const Request&)
      : arena_(create("arenas.create")), cache_(create("tcache.create")) {
    extent_hooks_t* hooks = reserving_hooks();
    const std::string control = "arena." + std::to_string(arena_) + ".extent_hooks";
    if (uvm_je_mallctl(control.c_str(), nullptr, nullptr, &hooks, sizeof hooks) != 0) {
      throw std::runtime_error("jemalloc does not take extent hooks");
    }
    flags_ = static_cast<int>(MALLOCX_ARENA(arena_) | MALLOCX_TCACHE(cache_) | MALLOCX_ALIGN(512));
  }
  ~JemallocAdapter() {
    uvm_je_mallctl("tcache.destroy", nullptr, nullptr, &cache_, sizeof cache_);
    const std::string control = "arena." + std::to_string(arena_) + ".destroy";
    uvm_je_mallctl(control.c_str(), nullptr, nullptr, nullptr, 0);
  }
  JemallocAdapter(const JemallocAdapter&) = delete;
  JemallocAdapter& operator=(const JemallocAdapter&) = delete;

  void* allocate(std::size_t size_bytes, cudaStream_t) {
    void* block = uvm_je_mallocx(size_bytes, flags_);
    if (block == nullptr) throw std::bad_alloc();
    return block;
  }
  void free(void* block, std::size_t size_bytes, cudaStream_t) {
    uvm_je_sdallocx(block, size_bytes, flags_);
  }

  std::size_t peak_reserved_bytes() const { return 0; }  // not measured

 private:
  static unsigned create(const char* control) {
    unsigned index = 0;
    std::size_t index_bytes = sizeof index;
    if (uvm_je_mallctl(control, &index, &index_bytes, nullptr, 0) != 0) throw std::bad_alloc();
    return index;
  }

  // Extents are inaccessible address space; jemalloc keeps its records elsewhere.
  static extent_hooks_t* reserving_hooks() {
    static extent_hooks_t hooks = [] {
      extent_hooks_t made{};
      made.alloc = [](extent_hooks_t*, void* wanted, std::size_t size_bytes, std::size_t alignment,
                      bool* zeroed, bool* committed, unsigned) -> void* {
        if (wanted != nullptr) return nullptr;
        void* range = mmap(nullptr, size_bytes + alignment, PROT_NONE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (range == MAP_FAILED) return nullptr;
        *zeroed = false;
        *committed = true;
        const auto address = reinterpret_cast<std::uintptr_t>(range);
        return reinterpret_cast<void*>((address + alignment - 1) & ~(alignment - 1));
      };
      made.split = [](extent_hooks_t*, void*, std::size_t, std::size_t, std::size_t, bool,
                      unsigned) { return false; };
      made.merge = [](extent_hooks_t*, void*, std::size_t, void*, std::size_t, bool, unsigned) {
        return false;
      };
      return made;
    }();
    return &hooks;
  }

  unsigned arena_;
  unsigned cache_;
  int flags_ = 0;
};

}  // namespace uvm::bench
