#include <uvmalloc/allocator/aligned_allocation.hpp>

#include <bit>
#include <stdexcept>

#include <fmt/format.h>

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
    if (allocator.in_forked_child()) {
      throw std::runtime_error(
          fmt::format("an alignment of {} bytes cannot be had in a forked child", alignment_bytes));
    }
    return allocator.allocate_aligned(facade, device, size_bytes, alignment_bytes, stream);
  }
  return allocator.allocate(facade, device, size_bytes, stream);
}

void free_or_log(CachingManagedAllocator& allocator, void* address) noexcept {
  if (allocator.free(address) == FreeResult::kNotOurs) {
    log(LogLevel::kError, "deallocate({}): no memory of this resource; nothing was freed", address);
  }
}

}  // namespace uvm
