#include "allocator/fork/child_memory.hpp"

#include <cstdlib>
#include <new>
#include <stdexcept>

#include <fmt/format.h>

#include <uvmalloc/configuration.hpp>
#include <uvmalloc/errors.hpp>
#include "runtime/log.hpp"
#include "storage/pages.hpp"

namespace uvm {

void* ChildMemory::allocate(Facade facade, std::size_t size_bytes) {
  if (facade == Facade::kDevice) {
    throw std::runtime_error(
        "uvmalloc: device memory cannot be used in a forked child; start the process with spawn or "
        "forkserver");
  }
  if (size_bytes == 0) return nullptr;
  void* address = nullptr;
  if (posix_memalign(&address, kGranule, size_bytes) != 0) {
    throw OutOfMemoryError(
        size_bytes, fmt::format("uvmalloc: out of memory: malloc refused {} in a forked child",
                                format_size(size_bytes)));
  }
  try {
    blocks_.insert(address);
  } catch (const std::bad_alloc&) {
    std::free(address);
    throw;
  }
  return address;
}

bool ChildMemory::free(void* address) {
  if (blocks_.erase(address) == 0) return false;
  std::free(address);
  return true;
}

}  // namespace uvm
