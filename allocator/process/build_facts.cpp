#include "allocator/process/build_facts.hpp"

#include <uvmalloc/uvmalloc.h>

#ifdef __clang__
#define UVMALLOC_COMPILER "Clang " __clang_version__
#else
#define UVMALLOC_COMPILER "GCC " __VERSION__
#endif

namespace uvm {

BuildFacts build_facts() {
  return {UVMALLOC_COMMIT, UVMALLOC_COMPILER};
}

}  // namespace uvm

const char* uvmalloc_build_info(void) noexcept {
  return UVMALLOC_VERSION ", commit " UVMALLOC_COMMIT ", " UVMALLOC_COMPILER;
}
