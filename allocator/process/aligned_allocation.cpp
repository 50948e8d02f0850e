#include <uvmalloc/allocator/process/aligned_allocation.hpp>

#include <bit>
#include <exception>
#include <stdexcept>

#include <fmt/format.h>

#include <uvmalloc/runtime/counting_runtime.hpp>
#include <uvmalloc/runtime/log.hpp>
#include <uvmalloc/storage/pages.hpp>

namespace uvm {
namespace {

constexpr std::size_t kBlockAlignment = 512;  // of every block, as allocate() promises

}  // namespace

void* allocate_aligned(CachingManagedAllocator& allocator, Facade facade, int device,
                       std::size_t size_bytes, std::size_t alignment_bytes, StreamHandle stream) {
  if (alignment_bytes == 0) return allocator.allocate(facade, device, size_bytes, stream);
  if (!std::has_single_bit(alignment_bytes) || alignment_bytes > kPageBytes) {
    throw std::invalid_argument(
        fmt::format("an alignment of {} bytes cannot be had; accepted: powers of two up to 2 MiB",
                    alignment_bytes));
  }
  if (alignment_bytes > kBlockAlignment) {
    return allocator.allocate_aligned(facade, device, size_bytes, alignment_bytes, stream);
  }
  return allocator.allocate(facade, device, size_bytes, stream);
}

void free_after(CachingManagedAllocator& allocator, void* address, int device,
                StreamHandle stream) noexcept {
  try {
    allocator.record_use(address, device, stream);
  } catch (const std::exception&) {
    // There is no memory to note it.
    allocator.runtime().synchronize_stream(device, stream);
  }
  free_or_log(allocator, address);
}

void free_or_log(CachingManagedAllocator& allocator, void* address) noexcept {
  if (allocator.free(address) == FreeResult::kNotOurs) {
    log(LogLevel::kError, "deallocate({}): no memory of this resource; nothing was freed", address);
  }
}

}  // namespace uvm
