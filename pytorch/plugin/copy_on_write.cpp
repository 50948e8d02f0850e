#include "pytorch/plugin/copy_on_write.hpp"

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <new>
#include <utility>
#include <variant>
#include <vector>

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/COW.h>
#include <c10/core/impl/COWDeleter.h>
#include <c10/util/ScopeExit.h>

#include "allocator/process/framework_bridge.hpp"
#include "pytorch/plugin/facades.hpp"
#include "pytorch/plugin/shared_block.hpp"

namespace uvm::torch_plugin {
namespace {

namespace cow = c10::impl::cow;

// A first write copies under one of these mutexes. The storage selects the mutex, so two threads
// that write to parts of one tensor make one copy.
std::array<std::mutex, 64> writing_mutexes;

std::mutex& writing_mutex(const c10::StorageImpl* storage) {
  const std::size_t hash = std::hash<const void*>{}(storage) / alignof(c10::StorageImpl);
  return writing_mutexes[hash % writing_mutexes.size()];
}

// A first write to a shared storage. Construct it before the write; call done() after the write.
class FirstWrite {
 public:
  explicit FirstWrite(const c10::StorageImpl& storage)
      : storage_(storage), before_(storage.data()), ours_(process_allocator()) {
    if (ours_ != nullptr && !ours_->find(before_)) ours_ = nullptr;
    if (ours_ != nullptr) uses_ = ours_->streams().uses_of(before_);
  }

  // Call this when the copy for a storage on a device has been made, before the storage releases
  // the shared block. Records that every stream of the device uses the block, because kernels that
  // were launched earlier may still read it.
  void leaves() const {
    if (ours_ == nullptr || !storage_.device().is_cuda()) return;
    ours_->streams().record_use_of_all(before_, storage_.device().index());
  }

  // If the writer took over the block, waits for kernels that may still read it: they were launched
  // through storages that no longer exist. If the writer made a copy on a device, records that
  // every stream that used the tensor uses the copy, not only the stream of the first write.
  void done(bool wait) const {
    if (ours_ == nullptr) return;
    const bool stolen = storage_.data() == before_;
    FrameworkBridge(*ours_).note_materialization(stolen ? 0 : storage_.nbytes(), stolen);
    if (stolen) {
      if (wait) ours_->streams().wait_for_uses(before_);
      note_pinned();
    } else if (storage_.device().is_cuda()) {
      for (const DeviceStream& use : uses_) {
        if (use.device == storage_.device().index()) ours_->record_use(storage_.data(), use);
      }
    }
  }

 private:
  // The block now belongs only to this storage. It may have been allocated as pinned for a pageable
  // storage, or the other way round, so correct its kind.
  void note_pinned() const {
    const c10::Allocator* made_by = storage_.allocator();
    const bool pinned = made_by == facades().pinned;
    if (!pinned && made_by != facades().host) return;
    const auto block = ours_->find(before_);
    if (block && block->pinned != pinned) FrameworkBridge(*ours_).set_pinned(before_, pinned);
  }

  const c10::StorageImpl& storage_;
  const void* before_;
  CachingManagedAllocator* ours_;
  std::vector<DeviceStream> uses_;
};

// True while this thread separates storages that other threads may be using.
thread_local bool copies_for_others = false;

// Copies the storage's bytes to a new block. Torch allocates the block on the current device.
c10::DataPtr own_copy(const c10::StorageImpl& storage) {
  c10::DeviceGuard guard(storage.device());
  // Stop charging the shared block first, so that a limit that had room for the block has room for
  // the copy.
  const UseThatEnds use(storage);
  c10::DataPtr copy;
  try {
    copy =
        const_cast<c10::Allocator*>(storage.allocator())->clone(storage.data(), storage.nbytes());
  } catch (...) {
    use.restore();
    throw;
  }
  // The copy is made on this thread's stream, and other threads' streams do not wait for it.
  if (copies_for_others && storage.device().is_cuda())
    allocator().streams().wait_for_uses(copy.get());
  return copy;
}

}  // namespace

void separate(const c10::Storage& storage) {
  const bool before = std::exchange(copies_for_others, true);
  auto restore = c10::make_scope_exit([&] { copies_for_others = before; });
  storage.unsafeGetStorageImpl()->mutable_data();
}

void release_writing_locks_in_child() {
  for (std::mutex& mutex : writing_mutexes) new (&mutex) std::mutex;
}

#if TORCH_VERSION_MINOR >= 13

namespace {

bool is_whole(const c10::StorageImpl& storage) {
  return is_releaser_of_whole(data_of(storage).get_deleter());
}

// Lets the last storage over a block keep the block without a copy, and returns whether it does. A
// storage that covers the whole block becomes its owner. A storage that covers less than half of
// the block has to copy, because keeping the block would waste the rest.
bool take_over(c10::StorageImpl& storage, SharedBlock* shared) {
  void* released = nullptr;
  const c10::DeleterFnPtr deleter = data_of(storage).get_deleter();
  {
    std::lock_guard lock(sharing_mutex);
    if (shared->storages != 1) return false;
    if (shared->parts_stay) return true;
    if (!is_whole(storage)) return storage.nbytes() >= shared->size_bytes / 2;
    c10::DataPtr block = std::move(shared->block);
    block.unsafe_set_device(storage.device());
    released = exchange_context(storage, std::move(block));
  }
  deleter(released);
  return true;
}

// Runs before the first write to a storage that is shared copy-on-write. Throws the same errors as
// an allocation; if it throws, nothing has changed.
void before_first_write(c10::StorageImpl* storage) {
  std::lock_guard writing(writing_mutex(storage));
  SharedBlock* shared = nullptr;
  bool several_cards = false;
  {
    std::lock_guard lock(sharing_mutex);
    shared = shared_block(*storage);
    if (shared == nullptr) return;  // another thread was faster, or the storage changed
    several_cards = shared->on_several_cards;
  }
  const FirstWrite write(*storage);
  if (!take_over(*storage, shared)) {
    bool because_of_parts = false;
    {
      std::lock_guard lock(sharing_mutex);
      because_of_parts = is_whole(*storage) && shared->parts + 1 == shared->storages;
    }
    c10::DataPtr next = own_copy(*storage);
    write.leaves();
    std::unique_lock lock(sharing_mutex);
    // Destroyed after the unlock: releasing the block takes the lock.
    const c10::DataPtr before =
        std::exchange(storage->_mutable_data_ptr_no_checks(), std::move(next));
    if (because_of_parts) make_shared_block(*storage)->parts_stay = true;
    lock.unlock();
  }
  write.done(storage->device().is_cpu() || several_cards);
}

void copy_on_write(c10::StorageImpl& storage) {
  if (!storage.has_materializer()) storage.set_materializer(&before_first_write);
}

}  // namespace

c10::Storage share_copy_on_write(c10::StorageImpl& storage, const StorageRange& range,
                                 const StorageOwner& owner) {
  SharedBlock* shared = shared_block(storage);
  if (shared == nullptr) shared = make_shared_block(storage);
  shared->aliased = false;
  shared->on_several_cards |= storage.device().is_cuda() && owner.device.is_cuda();
  c10::Storage other = storage_over(shared, storage, range, owner);
  copy_on_write(storage);
  copy_on_write(*other.unsafeGetStorageImpl());
  return other;
}

bool is_copy_on_write(const c10::StorageImpl& storage) {
  return storage.has_materializer();
}

bool can_be_written_first(const c10::StorageImpl& storage) {
  return !storage.has_materializer() || shared_block(storage) != nullptr;
}

#else

namespace {

// True once two devices have shared a block. Torch's data pointers do not record their devices.
std::atomic<bool> several_cards_share{false};

// Turns the storage's data pointer into torch's counted data pointer, if it is not one yet.
void make_core_shared(c10::StorageImpl& storage) {
  c10::DataPtr& data = storage._mutable_data_ptr_no_checks();
  if (cow::is_cow_data_ptr(data)) return;
  void* address = data.get();
  c10::Device device = data.device();
  auto* context = new cow::COWDeleterContext(data.move_context());
  storage.set_data_ptr_noswap(c10::DataPtr(address, context, cow::cow_deleter, device));
}

// Returns the number of storages over a block. Torch keeps the number in a private member. An
// explicit instantiation may name private members.
template <std::atomic<std::int64_t> cow::COWDeleterContext::*kCount>
struct CountOf {
  friend std::int64_t storages_over(const cow::COWDeleterContext& context) {
    return (context.*kCount).load();
  }
};
template struct CountOf<&cow::COWDeleterContext::refcount_>;
std::int64_t storages_over(const cow::COWDeleterContext& context);

// Does what torch does before a first write, but in another order: makes the copy before the
// storage gives up its share. So a lack of memory for the copy changes nothing.
void write_alone(c10::StorageImpl& storage, const FirstWrite& write) {
  const c10::DataPtr& data = data_of(storage);
  void* address = data.get();
  const c10::Device device = data.device();
  auto* context = data.cast_context<cow::COWDeleterContext>(cow::cow_deleter);
  c10::DataPtr next;
  if (storages_over(*context) > 1) {
    next = own_copy(storage);
    write.leaves();
  }
  auto reference = context->decrement_refcount();
  if (auto* last = std::get_if<cow::COWDeleterContext::LastReference>(&reference)) {
    // No other storage shares the block any more.
    const c10::DeleterFnPtr deleter = last->get_deleter();
    next = c10::DataPtr(address, last->release(), deleter, device);
  } else if (next.get() == nullptr) {
    next = own_copy(storage);  // another storage has begun to share the block
  }
  exchange_context(storage, std::move(next));  // drops the old context's reference
}

}  // namespace

c10::Storage share_copy_on_write(c10::StorageImpl& storage, const StorageRange& range,
                                 const StorageOwner& owner) {
  if (storage.device().is_cuda() && owner.device.is_cuda()) several_cards_share = true;
  make_core_shared(storage);
  const c10::DataPtr& data = data_of(storage);
  auto* context = data.cast_context<cow::COWDeleterContext>(cow::cow_deleter);
  context->increment_refcount();
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), range.size_bytes,
      c10::DataPtr(data.get(), context, cow::cow_deleter, owner.device), owner.allocator,
      /*resizable=*/true));
}

bool is_copy_on_write(const c10::StorageImpl& storage) {
  return cow::is_cow_data_ptr(data_of(storage));
}

bool can_be_written_first(const c10::StorageImpl&) {
  return true;
}

#endif

void materialize_core(void* opaque, void (*materialize)(void* storage)) {
#if TORCH_VERSION_MINOR >= 13
  materialize(opaque);
#else
  // Torch's own function gives up its reference before it allocates the copy, which may fail.
  (void)materialize;
  auto& storage = *static_cast<c10::StorageImpl*>(opaque);
  std::lock_guard writing(writing_mutex(&storage));
  if (!is_copy_on_write(storage)) return;  // another thread was faster
  const void* before = storage.data();
  const FirstWrite write(storage);
  write_alone(storage, write);
  write.done(storage.device().is_cpu() || several_cards_share);
  // Torch does not report when the host's storage is released. If only a device's storage holds the
  // block, the host's storage no longer exists.
  std::lock_guard lock(sharing_mutex);
  if (storage.device().is_cuda() && !is_copy_on_write(storage) && storage.data() == before) {
    note_left_host(before);
  }
#endif
}

}  // namespace uvm::torch_plugin
