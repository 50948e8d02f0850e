#include <uvmalloc/pytorch/plugin/conversion.hpp>

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <utility>

#include <uvmalloc/pytorch/plugin/early_blocks.hpp>
#include <uvmalloc/pytorch/plugin/facades.hpp>
#include <uvmalloc/pytorch/plugin/host_device.hpp>
#include <uvmalloc/pytorch/plugin/shared_block.hpp>

namespace uvm::torch_plugin {
namespace {

// How much of a tensor is in memory twice. Small against every tensor that is converted, and large
// against what a call of madvise costs.
constexpr std::size_t kPieceBytes = 256u << 10;

// Held while bytes go from one block to another. No allocation and no call of the driver is made
// under it.
std::mutex conversion_mutex;

// Gives the kernel the whole pages between two addresses. Where it refuses (locked memory) they go
// when the block is freed.
void drop_pages(char* begin, char* end) {
  if (begin < end) madvise(begin, static_cast<std::size_t>(end - begin), MADV_DONTNEED);
}

void move_bytes(char* to, char* from, std::size_t size_bytes) {
  static const auto kPage = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto page_before = [](char* address) {
    return address - (reinterpret_cast<std::uintptr_t>(address) & (kPage - 1));
  };
  // The first and the last page may hold what is others'.
  char* dropped_to = page_before(from + kPage - 1);
  for (std::size_t offset = 0; offset < size_bytes; offset += kPieceBytes) {
    const std::size_t piece_bytes = std::min(kPieceBytes, size_bytes - offset);
    std::memcpy(to + offset, from + offset, piece_bytes);
    char* const copied_to = page_before(from + offset + piece_bytes);
    drop_pages(dropped_to, copied_to);
    dropped_to = std::max(dropped_to, copied_to);
  }
}

}  // namespace

// A fork in the middle of a conversion would leave the child a storage whose pages are gone. The
// handler runs before that of the allocator, which copies managed blocks for the child, because it
// is registered later.
void hold_forks_during_conversions() {
  static const int kRegistered =
      pthread_atfork([] { conversion_mutex.lock(); }, [] { conversion_mutex.unlock(); },
                     [] { conversion_mutex.unlock(); });
  (void)kRegistered;
}

bool is_early(const c10::StorageImpl& storage) {
  const c10::DataPtr& data = data_of(storage);
  return data.get() != nullptr && data.get() == data.get_context() &&
         data.get_deleter() == &delete_early;
}

bool is_early_and_exported(const c10::StorageImpl& storage) {
  return is_early(storage) && EarlyBlocks::instance().is_exported(data_of(storage).get());
}

std::optional<CopyReason> convert(c10::StorageImpl& storage, int device) {
  CachingManagedAllocator& ours = allocator();
  const std::size_t size_bytes = storage.nbytes();
  void* block = nullptr;
  try {
    block = ours.begin_conversion(device_for_host_memory(device), size_bytes);
  } catch (const OutOfMemoryError&) {
    return CopyReason::kForeign;
  }
  c10::DataPtr before;  // freed without the lock
  {
    std::lock_guard lock(conversion_mutex);
    void* address = data_of(storage).get();
    if (is_early(storage) && EarlyBlocks::instance().convertible_bytes(address) >= size_bytes) {
      move_bytes(static_cast<char*>(block), static_cast<char*>(address), size_bytes);
      before = storage.set_data_ptr(managed_host_data(block, size_bytes));
    }
  }
  const bool done = before.get() != nullptr;
  ours.end_conversion(block, size_bytes, done);
  if (done || !is_early(storage)) return std::nullopt;
  return is_early_and_exported(storage) ? CopyReason::kExported : CopyReason::kForeign;
}

bool mark_early_exported(const c10::StorageImpl& storage) {
  if (EarlyBlocks::instance().empty()) return false;
  std::lock_guard lock(conversion_mutex);
  return is_early(storage) && EarlyBlocks::instance().mark_exported(data_of(storage).get());
}

bool mark_early_exported(const void* pointer) {
  return EarlyBlocks::instance().mark_exported(pointer);
}

}  // namespace uvm::torch_plugin
