#include "pytorch/plugin/conversion.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "allocator/process/framework_bridge.hpp"
#include "pytorch/plugin/early_blocks.hpp"
#include "pytorch/plugin/facades.hpp"
#include "pytorch/plugin/host_device.hpp"
#include "pytorch/plugin/region.hpp"
#include "pytorch/plugin/shared_block.hpp"
#include "pytorch/plugin/sole_python_thread.hpp"
#include "pytorch/plugin/tensor_storage.hpp"

namespace uvm::torch_plugin {
namespace {

// A tensor is copied in pieces of this size, so at most one piece is in memory twice. A piece is
// small compared with any converted tensor, and large enough to outweigh the cost of madvise.
constexpr std::size_t kPieceBytes = 256u << 10;

// Returns the pages between two addresses to the kernel. If the kernel refuses (locked memory), the
// pages are returned when the block is freed.
void drop_pages(char* begin, char* end) {
  if (begin < end) madvise(begin, static_cast<std::size_t>(end - begin), MADV_DONTNEED);
}

void move_bytes(char* to, char* from, std::size_t size_bytes) {
  static const auto kPage = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto page_before = [](char* address) {
    return address - (reinterpret_cast<std::uintptr_t>(address) & (kPage - 1));
  };
  // The first and the last page may hold parts of other blocks, so they are not dropped.
  char* dropped_to = page_before(from + kPage - 1);
  for (std::size_t offset = 0; offset < size_bytes; offset += kPieceBytes) {
    const std::size_t piece_bytes = std::min(kPieceBytes, size_bytes - offset);
    std::memcpy(to + offset, from + offset, piece_bytes);
    char* const copied_to = page_before(from + offset + piece_bytes);
    drop_pages(dropped_to, copied_to);
    dropped_to = std::max(dropped_to, copied_to);
  }
}

// Returns whether only the tensor's Python object refers to the tensor and its storage. Ignores the
// storage's own Python object. Views, autograd, and C++ code that uses the tensor are further
// references.
bool is_held_by_python_alone(const at::Tensor& tensor) {
  const bool has_storage_object = storage_of(tensor).pyobj_slot()->load_pyobj() != nullptr;
  return tensor.use_count() == 1 && tensor.storage().use_count() <= (has_storage_object ? 2 : 1);
}

}  // namespace

bool is_early(const c10::StorageImpl& storage) {
  const c10::DataPtr& data = data_of(storage);
  return data.get() != nullptr && data.get() == data.get_context() &&
         data.get_deleter() == &delete_early;
}

bool is_early_and_exported(const c10::StorageImpl& storage) {
  return is_early(storage) && EarlyBlocks::instance().is_exported(data_of(storage).get());
}

std::optional<CopyReason> convert(const at::Tensor& tensor, int device) {
  const SolePythonThread thread;  // makes sure that no other thread can begin to read
  if (!thread.is_sole() || !is_held_by_python_alone(tensor)) return CopyReason::kMayBeRead;
  c10::StorageImpl& storage = storage_of(tensor);
  void* address = data_of(storage).get();
  const std::size_t size_bytes = storage.nbytes();
  if (EarlyBlocks::instance().convertible_bytes(address) < size_bytes) return CopyReason::kForeign;
  void* block = nullptr;
  try {
    block = FrameworkBridge(allocator())
                .allocate_for_conversion(device_for_host_memory(device), size_bytes);
  } catch (const OutOfMemoryError&) {
    return CopyReason::kForeign;
  }
  move_bytes(static_cast<char*>(block), static_cast<char*>(address), size_bytes);
  storage.set_data_ptr(managed_host_data(block, size_bytes));
  join_group(Facade::kHost, block);
  return std::nullopt;
}

bool mark_early_exported(const void* pointer) {
  return EarlyBlocks::instance().mark_exported(pointer);
}

}  // namespace uvm::torch_plugin
