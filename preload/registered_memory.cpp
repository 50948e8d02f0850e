#include "preload/registered_memory.hpp"

#include <iterator>

#include "allocator/process/process_allocator.hpp"

namespace uvm::preload {
namespace {

// Returns the block at `address` if it is managed memory that the host uses and that is not pinned.
// The driver registers ordinary memory (HostBacking::kOrdinary) itself.
std::optional<BlockDescription> managed_block_of(const void* address) {
  const CachingManagedAllocator* ours = process_allocator();
  if (ours == nullptr || ours->inspection().in_forked_child()) return std::nullopt;
  if (ours->inspection().host_backing() != HostBacking::kManaged) return std::nullopt;
  const auto block = ours->find(address);
  return block && block->used_by_host && !block->pinned ? block : std::nullopt;
}

}  // namespace

RegisteredMemory& RegisteredMemory::instance() {
  static auto& memory = *new RegisteredMemory;  // never destroyed
  return memory;
}

std::optional<int> RegisteredMemory::add(const void* address, std::size_t size_bytes) {
  constexpr int kInvalidValue = 1;         // cudaErrorInvalidValue
  constexpr int kAlreadyRegistered = 712;  // cudaErrorHostMemoryAlreadyRegistered
  const auto block = managed_block_of(address);
  if (!block) return std::nullopt;
  const auto* begin = static_cast<const char*>(address);
  const auto* end = static_cast<const char*>(block->base) + block->size_bytes;
  if (size_bytes == 0 || size_bytes > static_cast<std::size_t>(end - begin)) return kInvalidValue;
  std::lock_guard lock(mutex_);
  const auto after = ranges_.lower_bound(begin);
  const bool meets_next = after != ranges_.end() && after->first < begin + size_bytes;
  if (meets_next || holds(after, begin)) return kAlreadyRegistered;
  ranges_.emplace_hint(after, begin, size_bytes);
  return 0;
}

bool RegisteredMemory::remove(const void* address) {
  std::lock_guard lock(mutex_);
  return ranges_.erase(static_cast<const char*>(address)) != 0;
}

void RegisteredMemory::forget_ended_blocks() {
  const std::lock_guard lock(mutex_);
  std::erase_if(ranges_, [](const auto& range) {
    const auto block = managed_block_of(range.first);
    return !block || !block->live;
  });
}

bool RegisteredMemory::contains(const void* address) {
  const auto* wanted = static_cast<const char*>(address);
  std::lock_guard lock(mutex_);
  return holds(ranges_.upper_bound(wanted), wanted);
}

// Returns whether the last range before `after` contains the address. The caller holds the mutex.
bool RegisteredMemory::holds(Ranges::const_iterator after, const char* address) const {
  if (after == ranges_.begin()) return false;
  const auto& [begin, size_bytes] = *std::prev(after);
  return address < begin + size_bytes;
}

}  // namespace uvm::preload
