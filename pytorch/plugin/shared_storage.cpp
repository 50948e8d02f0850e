#include <uvmalloc/pytorch/plugin/shared_storage.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <new>
#include <unordered_map>
#include <utility>
#include <vector>

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/COW.h>
#include <c10/core/impl/COWDeleter.h>
#include <c10/util/ScopeExit.h>

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

// Storages that are, or have been, shared copy-on-write, by the block that they shared; guarded by
// sharing_mutex.
class CopyOnWriteStorages {
 public:
  using Weak = c10::weak_intrusive_ptr<c10::StorageImpl>;

  void add(const void* block, const c10::Storage& storage) {
    if (blocks_.size() >= most_) forget_gone();
    std::vector<Weak>& over = blocks_[block];
    forget_gone(&over);
    for (const Weak& known : over) {
      if (known._unsafe_get_target() == storage.unsafeGetStorageImpl()) return;
    }
    over.push_back(storage.getWeakStorageImpl());
  }

  // In the order in which they began to share the block. They may have other memory by now.
  std::vector<Weak> of(const void* block) const {
    const auto found = blocks_.find(block);
    return found == blocks_.end() ? std::vector<Weak>() : found->second;
  }

  std::vector<Weak> all() const {
    std::vector<Weak> out;
    for (const auto& [block, over] : blocks_) out.insert(out.end(), over.begin(), over.end());
    return out;
  }

 private:
  static void forget_gone(std::vector<Weak>* storages) {
    std::erase_if(*storages, [](const Weak& storage) { return storage.expired(); });
  }
  void forget_gone() {
    for (auto& [block, over] : blocks_) forget_gone(&over);
    std::erase_if(blocks_, [](const auto& entry) { return entry.second.empty(); });
    most_ = std::max<std::size_t>(1024, 2 * blocks_.size());
  }

  std::size_t most_ = 1024;
  std::unordered_map<const void*, std::vector<Weak>> blocks_;
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
      note_pinned();
    } else if (storage_.device().is_cuda()) {
      for (const DeviceStream& use : uses_) {
        if (use.device == storage_.device().index()) ours_->record_use(storage_.data(), use);
      }
    }
  }

 private:
  // A block is the storage's own now. It may have been made for a storage of the other kind.
  void note_pinned() const {
    const c10::Allocator* made_by = storage_.allocator();
    const bool pinned = made_by == facades().pinned;
    if (!pinned && made_by != facades().host) return;
    const auto block = ours_->find(before_);
    if (block && block->pinned != pinned) ours_->set_pinned(before_, pinned);
  }

  const c10::StorageImpl& storage_;
  const void* before_;
  CachingManagedAllocator* ours_;
  std::vector<DeviceStream> uses_;
};

// This thread gives storages bytes of their own that other threads may be using.
thread_local bool copies_for_others = false;

// Torch asks for memory on the current device, whichever that is.
c10::DataPtr own_copy(const c10::StorageImpl& storage) {
  c10::DeviceGuard guard(storage.device());
  c10::DataPtr copy =
      const_cast<c10::Allocator*>(storage.allocator())->clone(storage.data(), storage.nbytes());
  // Other threads' streams are not ordered after this thread's, which copies.
  if (copies_for_others && storage.device().is_cuda()) allocator().wait_for_uses(copy.get());
  return copy;
}

// The storage's bytes are its own on return, and any stream may use them.
void separate(const c10::Storage& storage) {
  const bool before = std::exchange(copies_for_others, true);
  auto restore = c10::make_scope_exit([&] { copies_for_others = before; });
  storage.unsafeGetStorageImpl()->mutable_data();
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
  SharedBlock* shared = nullptr;
  bool several_cards = false;
  {
    std::lock_guard lock(sharing_mutex);
    shared = shared_block(*storage);
    if (shared == nullptr) return;  // another thread was faster, or it has got other memory since
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
    // Destroyed without the lock, which letting go of the block takes.
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

c10::Storage share_alias(c10::StorageImpl& storage, const StorageRange& range,
                         const StorageOwner& owner) {
  SharedBlock* shared = shared_block(storage);
  if (shared == nullptr) shared = make_shared_block(storage);
  shared->aliased = true;
  return storage_over(shared, storage, range, owner);
}

// All that follow up to the end of this namespace: with sharing_mutex.

// The storage's bytes are in a block that it owns or shares in a way that is known here; not those
// of a core copy-on-write clone, for example.
bool can_share(const c10::StorageImpl& storage) {
  const c10::DataPtr& data = data_of(storage);
  bool known = data.get() == data.get_context() || shared_block(storage) != nullptr ||
               (!kPartsCanBeShared && is_copy_on_write(storage));
  return known && can_be_written_first(storage);
}

// Another storage sees what is written here.
bool is_aliased(const c10::StorageImpl& storage) {
  const SharedBlock* shared = shared_block(storage);
  // Torch's own copy-on-write can take over plain blocks only: what was aliased once stays so.
  if (!kPartsCanBeShared) return shared != nullptr;
  return shared != nullptr && shared->aliased && shared->storages > 1;
}

// A part had moved when the whole was written to, so that all of it had to be copied.
bool parts_stay(const c10::StorageImpl& storage) {
  const SharedBlock* shared = shared_block(storage);
  return shared != nullptr && shared->parts_stay;
}

std::optional<CopyReason> why_not_share(const c10::StorageImpl& storage, const StorageRange& range,
                                        Sharing sharing) {
  if (!can_share(storage)) return CopyReason::kForeign;
  // An alias is meant to be seen through by whoever holds a pointer.
  if (sharing == Sharing::kAlias) return std::nullopt;
  const bool is_part = range.offset_bytes != 0 || range.size_bytes != storage.nbytes();
  if (is_part && parts_stay(storage)) return CopyReason::kPartialStorage;
  if (is_aliased(storage)) return CopyReason::kAliased;
  const auto block = allocator().find(data_of(storage).get());
  return block && block->exported ? std::optional(CopyReason::kExported) : std::nullopt;
}

// The storages that share the block copy-on-write, the one that was there first in front.
std::vector<c10::Storage> sharers_of(const void* block) {
  std::vector<c10::Storage> out;
  for (const auto& weak : copy_on_write_storages.of(block)) {
    c10::Storage storage(weak.lock());
    if (!storage || !is_copy_on_write(*storage.unsafeGetStorageImpl())) continue;
    const auto found = allocator().find(storage.data());
    if (found && found->base == block) out.push_back(std::move(storage));
  }
  return out;
}

}  // namespace

std::optional<CopyReason> reason_not_to_share(const c10::StorageImpl& storage,
                                              const StorageRange& range, Sharing sharing) {
  std::lock_guard lock(sharing_mutex);
  return why_not_share(storage, range, sharing);
}

std::variant<c10::Storage, CopyReason> share(const c10::Storage& source, const StorageRange& range,
                                             const StorageOwner& owner, Sharing sharing) {
  c10::StorageImpl& storage = *source.unsafeGetStorageImpl();
  std::unique_lock lock(sharing_mutex);
  // What is copied when it is written to cannot be what others see the writes of.
  while (sharing == Sharing::kAlias && is_copy_on_write(storage)) {
    lock.unlock();
    storage.mutable_data();
    lock.lock();
  }
  if (const auto reason = why_not_share(storage, range, sharing)) return *reason;
  const auto block = allocator().find(data_of(storage).get());
  if (!block) return CopyReason::kForeign;
  // A storage without an allocator (torch.load makes such) could not copy itself.
  if (storage.allocator() == nullptr) storage.set_allocator(facades().of(storage.device()));
  if (sharing == Sharing::kAlias) return share_alias(storage, range, owner);
  c10::Storage other = share_copy_on_write(storage, range, owner);
  copy_on_write_storages.add(block->base, source);
  copy_on_write_storages.add(block->base, other);
  return other;
}

void note_exported(const void* address) {
  CachingManagedAllocator& ours = allocator();
  std::vector<c10::Storage> sharers;
  {
    std::lock_guard lock(sharing_mutex);
    if (!ours.mark_exported(address)) return;
    sharers = sharers_of(ours.find(address)->base);
  }
  // The pointer is to a storage that had the block alone when it was taken, so to the first one,
  // which keeps the address. Others began to share since.
  for (; !sharers.empty(); sharers.pop_back()) separate(sharers.back());
}

void end_copy_on_write() {
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
    separate(storage);
    allocator().mark_exported(storage.data());
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
