#include "pytorch/plugin/shared_block.hpp"

#include <utility>

#include "allocator/process/framework_bridge.hpp"
#include "pytorch/plugin/facades.hpp"

namespace uvm::torch_plugin {

std::mutex sharing_mutex;

void note_left_host(const void* address) {
  if (CachingManagedAllocator* ours = process_allocator())
    FrameworkBridge(*ours).note_left_host(address);
}

namespace {

template <bool kPart, bool kOnHost>
void release(void* context) {
  auto* shared = static_cast<SharedBlock*>(context);
  {
    std::lock_guard lock(sharing_mutex);
    if (kPart) --shared->parts;
    if (kOnHost) --shared->on_host;
    if (--shared->storages != 0) {
      if (kOnHost && shared->on_host == 0) note_left_host(shared->block.get());
      return;
    }
  }
  delete shared;
}

c10::DeleterFnPtr releaser(bool part, bool on_host) {
  if (part) return on_host ? &release<true, true> : &release<true, false>;
  return on_host ? &release<false, true> : &release<false, false>;
}
bool is_releaser(c10::DeleterFnPtr deleter, bool part) {
  return deleter == releaser(part, true) || deleter == releaser(part, false);
}

}  // namespace

bool is_releaser_of_whole(c10::DeleterFnPtr deleter) {
  return is_releaser(deleter, false);
}

const c10::DataPtr& data_of(const c10::StorageImpl& storage) {
  return const_cast<c10::StorageImpl&>(storage)._mutable_data_ptr_no_checks();
}

SharedBlock* shared_block(const c10::StorageImpl& storage) {
  const c10::DataPtr& data = data_of(storage);
  c10::DeleterFnPtr deleter = data.get_deleter();
  return is_releaser(deleter, true) || is_releaser(deleter, false)
             ? static_cast<SharedBlock*>(data.get_context())
             : nullptr;
}

void* exchange_context(c10::StorageImpl& storage, c10::DataPtr next) {
  void* before = storage._mutable_data_ptr_no_checks().release_context();
  storage.set_data_ptr_noswap(std::move(next));
  return before;
}

SharedBlock* make_shared_block(c10::StorageImpl& storage) {
  const c10::DataPtr& data = data_of(storage);
  void* address = data.get();
  c10::Device device = data.device();
  c10::DeleterFnPtr deleter = data.get_deleter();
  auto* shared = new SharedBlock;
  shared->size_bytes = storage.nbytes();
  shared->storages = 1;
  shared->on_host = device.is_cpu() ? 1 : 0;
  c10::DataPtr whole(address, shared, releaser(false, device.is_cpu()), device);
  void* context = exchange_context(storage, std::move(whole));
  shared->block = c10::DataPtr(address, context, deleter, device);
  return shared;
}

c10::Storage storage_over(SharedBlock* shared, const c10::StorageImpl& storage,
                          const StorageRange& range, const StorageOwner& owner) {
  const c10::Device device = owner.device;
  auto* base = static_cast<char*>(data_of(storage).get());
  bool whole = base == shared->block.get() && range.offset_bytes == 0 &&
               range.size_bytes == shared->size_bytes;
  ++shared->storages;
  if (!whole) ++shared->parts;
  if (device.is_cpu()) ++shared->on_host;
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), range.size_bytes,
      c10::DataPtr(base + range.offset_bytes, shared, releaser(!whole, device.is_cpu()), device),
      owner.allocator, /*resizable=*/true));
}

}  // namespace uvm::torch_plugin
