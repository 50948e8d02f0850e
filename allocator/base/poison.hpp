// Marks freed memory as inaccessible in builds with AddressSanitizer, so that a use after free is
// reported at the access. Does nothing in other builds. Accesses by devices are not reported.
#pragma once

#include <cstddef>

#include "allocator/base/sanitizers.hpp"

#if UVMALLOC_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#endif

namespace uvm {

#if UVMALLOC_ADDRESS_SANITIZER
inline void poison(const void* address, std::size_t size_bytes) {
  ASAN_POISON_MEMORY_REGION(address, size_bytes);
}
inline void unpoison(const void* address, std::size_t size_bytes) {
  ASAN_UNPOISON_MEMORY_REGION(address, size_bytes);
}
#else
inline void poison(const void*, std::size_t) {}
inline void unpoison(const void*, std::size_t) {}
#endif

}  // namespace uvm
