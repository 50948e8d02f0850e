#include <uvmalloc/pytorch/plugin/shared_storage.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <new>
#include <unordered_map>
#include <variant>
#include <vector>

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/COW.h>
#include <c10/core/impl/COWDeleter.h>

#include <uvmalloc/pytorch/plugin/facades.hpp>

namespace uvm::torch_plugin {
namespace {

namespace cow = c10::impl::cow;

// One block and how many storages lie over it. Guarded by sharing_mutex.
struct SharedBlock {
  c10::DataPtr block;  // frees it
  std::size_t size_bytes = 0;
  std::size_t storages = 0;
  std::size_t on_host = 0;        // those of them that are the host's
  std::size_t parts = 0;          // those of them that cover less than the block
  bool aliased = false;           // all see every write
  bool on_several_cards = false;  // by now or before
  bool parts_stay = false;
};

// Guards who shares what. Held for a few instructions.
std::mutex sharing_mutex;

// A first write copies under one of these, chosen by the storage: two threads that write to parts
// of a tensor must not both make it a copy.
std::array<std::mutex, 64> writing_mutexes;

std::mutex& writing_mutex(const c10::StorageImpl* storage) {
  const std::size_t hash = std::hash<const void*>{}(storage) / alignof(c10::StorageImpl);
  return writing_mutexes[hash % writing_mutexes.size()];
}

// Storages that are, or have been, shared copy-on-write; guarded by sharing_mutex.
class CopyOnWriteStorages {
 public:
  using Weak = c10::weak_intrusive_ptr<c10::StorageImpl>;

  void add(const c10::Storage& storage) {
    if (storages_.size() >= most_) forget_gone();
    storages_.try_emplace(storage.unsafeGetStorageImpl(), storage.getWeakStorageImpl());
  }

  std::vector<Weak> all() const {
    std::vector<Weak> out;
    for (const auto& [address, storage] : storages_) out.push_back(storage);
    return out;
  }

 private:
  void forget_gone() {
    std::erase_if(storages_, [](const auto& entry) { return entry.second.expired(); });
    most_ = std::max<std::size_t>(1024, 2 * storages_.size());
  }

  std::size_t most_ = 1024;
  std::unordered_map<const c10::StorageImpl*, Weak> storages_;
};
CopyOnWriteStorages& copy_on_write_storages = *new CopyOnWriteStorages;  // for good

// With the lock, so that a move to the host comes before or after.
void note_left_host(const void* address) {
  if (CachingManagedAllocator* ours = process_allocator()) ours->note_left_host(address);
}

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

// Puts `next` in place. The address is the same throughout: other threads may be reading it. What
// the storage had is for the caller to let go of, without the lock.
void* exchange_context(c10::StorageImpl& storage, c10::DataPtr next) {
  void* before = storage._mutable_data_ptr_no_checks().release_context();
  storage.set_data_ptr_noswap(std::move(next));
  return before;
}

// Makes a block that the storage has for itself one that can be shared.
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
                          const StorageRange& range, c10::Device device) {
  auto* base = static_cast<char*>(data_of(storage).get());
  bool whole = base == shared->block.get() && range.offset_bytes == 0 &&
               range.size_bytes == shared->size_bytes;
  ++shared->storages;
  if (!whole) ++shared->parts;
  if (device.is_cpu()) ++shared->on_host;
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), range.size_bytes,
      c10::DataPtr(base + range.offset_bytes, shared, releaser(!whole, device.is_cpu()), device),
      facades().of(device), /*resizable=*/true));
}

// Of a storage that is shared: made before it, told when it is done.
class FirstWrite {
 public:
  explicit FirstWrite(const c10::StorageImpl& storage)
      : storage_(storage), before_(storage.data()), ours_(process_allocator()) {
    if (ours_ != nullptr && !ours_->find(before_)) ours_ = nullptr;
    if (ours_ != nullptr) uses_ = ours_->uses_of(before_);
  }

  // Before a device's storage, which has a copy now, lets go of the block: it may have readers on
  // any stream there, since a pointer that is only looked at counts as a write.
  void leaves() const {
    if (ours_ == nullptr || !storage_.device().is_cuda()) return;
    ours_->record_use_of_all(before_, storage_.device().index());
  }

  // A writer that took the block over may meet kernels that still read it, launched through
  // storages that are gone. A copy on a device is used by whoever used the tensor so far, not by
  // the stream alone that happened to write first.
  void done(bool wait) const {
    if (ours_ == nullptr) return;
    const bool stolen = storage_.data() == before_;
    ours_->note_materialization(stolen ? 0 : storage_.nbytes(), stolen);
    if (stolen) {
      if (wait) ours_->wait_for_uses(before_);
    } else if (storage_.device().is_cuda()) {
      for (const DeviceStream& use : uses_) {
        if (use.device == storage_.device().index()) ours_->record_use(storage_.data(), use);
      }
    }
  }

 private:
  const c10::StorageImpl& storage_;
  const void* before_;
  CachingManagedAllocator* ours_;
  std::vector<DeviceStream> uses_;
};

// Torch asks for memory on the current device, whichever that is.
c10::DataPtr own_copy(const c10::StorageImpl& storage) {
  c10::DeviceGuard guard(storage.device());
  return const_cast<c10::Allocator*>(storage.allocator())->clone(storage.data(), storage.nbytes());
}

#if TORCH_VERSION_MINOR >= 13

bool is_whole(const c10::StorageImpl& storage) {
  return is_releaser(data_of(storage).get_deleter(), false);
}

// The last storage over a block keeps it: as its own where it covers it; else as it is, unless it
// would keep much more alive than it uses.
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

// Runs before the first write to a storage that is shared copy-on-write. Throws as an allocation
// does; then nothing has changed.
void before_first_write(c10::StorageImpl* storage) {
  std::lock_guard writing(writing_mutex(storage));
  SharedBlock* shared = shared_block(*storage);
  if (shared == nullptr) return;  // another thread was faster, or it has got other memory since
  const FirstWrite write(*storage);
  const bool several_cards = shared->on_several_cards;
  if (!take_over(*storage, shared)) {
    bool because_of_parts = false;
    {
      std::lock_guard lock(sharing_mutex);
      because_of_parts = is_whole(*storage) && shared->parts + 1 == shared->storages;
    }
    c10::DataPtr copy = own_copy(*storage);
    write.leaves();
    storage->set_data_ptr_noswap(std::move(copy));
    if (because_of_parts) make_shared_block(*storage)->parts_stay = true;
  }
  write.done(storage->device().is_cpu() || several_cards);
}

void copy_on_write(c10::StorageImpl& storage) {
  if (!storage.has_materializer()) storage.set_materializer(&before_first_write);
}

c10::Storage share_copy_on_write(c10::StorageImpl& storage, const StorageRange& range,
                                 c10::Device device) {
  SharedBlock* shared = shared_block(storage);
  if (shared == nullptr) shared = make_shared_block(storage);
  shared->aliased = false;
  shared->on_several_cards |= storage.device().is_cuda() && device.is_cuda();
  c10::Storage other = storage_over(shared, storage, range, device);
  copy_on_write(storage);
  copy_on_write(*other.unsafeGetStorageImpl());
  return other;
}

// A storage that somebody else has made wait for its first write cannot wait for ours.
bool is_copy_on_write(const c10::StorageImpl& storage) {
  return storage.has_materializer();
}
bool can_be_written_first(const c10::StorageImpl& storage) {
  return !storage.has_materializer() || shared_block(storage) != nullptr;
}

#else

// Torch's own data pointers do not tell which devices they have been on.
std::atomic<bool> several_cards_share{false};

// Torch's own counted data pointer, if it is none yet.
void make_core_shared(c10::StorageImpl& storage) {
  c10::DataPtr& data = storage._mutable_data_ptr_no_checks();
  if (cow::is_cow_data_ptr(data)) return;
  void* address = data.get();
  c10::Device device = data.device();
  auto* context = new cow::COWDeleterContext(data.move_context());
  storage.set_data_ptr_noswap(c10::DataPtr(address, context, cow::cow_deleter, device));
}

c10::Storage share_copy_on_write(c10::StorageImpl& storage, const StorageRange& range,
                                 c10::Device device) {
  if (storage.device().is_cuda() && device.is_cuda()) several_cards_share = true;
  make_core_shared(storage);
  const c10::DataPtr& data = data_of(storage);
  auto* context = data.cast_context<cow::COWDeleterContext>(cow::cow_deleter);
  context->increment_refcount();
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), range.size_bytes,
      c10::DataPtr(data.get(), context, cow::cow_deleter, device), facades().of(device),
      /*resizable=*/true));
}

bool is_copy_on_write(const c10::StorageImpl& storage) {
  return cow::is_cow_data_ptr(data_of(storage));
}
bool can_be_written_first(const c10::StorageImpl&) {
  return true;
}

// How many storages lie over a block, which torch does not tell: the language lets an explicit
// instantiation name a private member.
template <std::atomic<std::int64_t> cow::COWDeleterContext::*kCount>
struct CountOf {
  friend std::int64_t storages_over(const cow::COWDeleterContext& context) {
    return (context.*kCount).load();
  }
};
template struct CountOf<&cow::COWDeleterContext::refcount_>;
std::int64_t storages_over(const cow::COWDeleterContext& context);

// Before a first write. What torch does then, but that a copy is made while the storage still has
// its share: where there is no memory for one, nothing has changed.
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
    // The others are gone by now.
    const c10::DeleterFnPtr deleter = last->get_deleter();
    next = c10::DataPtr(address, last->release(), deleter, device);
  } else if (next.get() == nullptr) {
    next = own_copy(storage);  // somebody has begun to share it meanwhile
  }
  exchange_context(storage, std::move(next));  // its reference is given up already
}

#endif

c10::Storage share_alias(c10::StorageImpl& storage, const StorageRange& range, c10::Device device) {
  SharedBlock* shared = shared_block(storage);
  if (shared == nullptr) shared = make_shared_block(storage);
  shared->aliased = true;
  return storage_over(shared, storage, range, device);
}

}  // namespace

bool can_share(const c10::StorageImpl& storage) {
  const c10::DataPtr& data = data_of(storage);
  bool known = data.get() == data.get_context() || shared_block(storage) != nullptr ||
               (!kPartsCanBeShared && is_copy_on_write(storage));
  return known && can_be_written_first(storage);
}

bool is_aliased(const c10::StorageImpl& storage) {
  std::lock_guard lock(sharing_mutex);
  const SharedBlock* shared = shared_block(storage);
  // Torch's own copy-on-write can take over plain blocks only: what was aliased once stays so.
  if (!kPartsCanBeShared) return shared != nullptr;
  return shared != nullptr && shared->aliased && shared->storages > 1;
}

bool parts_stay(const c10::StorageImpl& storage) {
  std::lock_guard lock(sharing_mutex);
  const SharedBlock* shared = shared_block(storage);
  return shared != nullptr && shared->parts_stay;
}

c10::Storage share(const c10::Storage& owner, const StorageRange& range, c10::Device device,
                   Sharing sharing) {
  c10::StorageImpl& storage = *owner.unsafeGetStorageImpl();
  // What is copied when it is written to cannot be what others see the writes of.
  if (sharing == Sharing::kAlias && is_copy_on_write(storage)) storage.mutable_data();
  std::lock_guard lock(sharing_mutex);
  // A storage without an allocator (torch.load makes such) could not copy itself.
  if (storage.allocator() == nullptr) storage.set_allocator(facades().of(storage.device()));
  if (sharing == Sharing::kAlias) return share_alias(storage, range, device);
  c10::Storage other = share_copy_on_write(storage, range, device);
  copy_on_write_storages.add(owner);
  copy_on_write_storages.add(other);
  return other;
}

void end_copy_on_write() {
  CachingManagedAllocator& ours = allocator();
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> known;
  {
    std::lock_guard lock(sharing_mutex);
    known = copy_on_write_storages.all();
  }
  std::vector<c10::Storage> storages;
  for (const auto& weak : known) {
    if (auto storage = weak.lock()) storages.emplace_back(std::move(storage));
  }
  // A device copies pages that are there already; then the host need not.
  std::stable_partition(storages.begin(), storages.end(),
                        [](const c10::Storage& storage) { return storage.device().is_cuda(); });
  for (const c10::Storage& storage : storages) {
    const void* before = storage.data();
    const void* now = storage.unsafeGetStorageImpl()->mutable_data();
    ours.mark_exported(now);
    // Other streams than the one that copies may use it next.
    if (now != before && storage.device().is_cuda()) ours.wait_for_uses(now);
  }
}

void release_locks_in_child() {
  new (&sharing_mutex) std::mutex;
  for (std::mutex& mutex : writing_mutexes) new (&mutex) std::mutex;
}

void materialize_core(void* opaque, void (*materialize)(void* storage)) {
#if TORCH_VERSION_MINOR >= 13
  materialize(opaque);
#else
  // Torch gives its reference up before it asks for the copy's memory, which there may not be.
  (void)materialize;
  auto& storage = *static_cast<c10::StorageImpl*>(opaque);
  std::lock_guard writing(writing_mutex(&storage));
  if (!is_copy_on_write(storage)) return;  // another thread was faster
  const void* before = storage.data();
  const FirstWrite write(storage);
  write_alone(storage, write);
  write.done(storage.device().is_cpu() || several_cards_share);
  // Torch does not tell when the host's side goes; a device's that has the bytes for itself has
  // outlived it.
  std::lock_guard lock(sharing_mutex);
  if (storage.device().is_cuda() && !is_copy_on_write(storage) && storage.data() == before) {
    note_left_host(before);
  }
#endif
}

}  // namespace uvm::torch_plugin
