#include "pytorch/plugin/shared_storage.hpp"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "allocator/process/framework_bridge.hpp"
#include "pytorch/plugin/copy_on_write.hpp"
#include "pytorch/plugin/copy_on_write_storages.hpp"
#include "pytorch/plugin/facades.hpp"
#include "pytorch/plugin/shared_block.hpp"

namespace uvm::torch_plugin {
namespace {

CopyOnWriteStorages& copy_on_write_storages = *new CopyOnWriteStorages;  // never destroyed

c10::Storage share_alias(c10::StorageImpl& storage, const StorageRange& range,
                         const StorageOwner& owner) {
  SharedBlock* shared = shared_block(storage);
  if (shared == nullptr) shared = make_shared_block(storage);
  shared->aliased = true;
  return storage_over(shared, storage, range, owner);
}

// Hold sharing_mutex during calls of the functions up to the end of this namespace.

// Whether the storage owns its block, or shares the block in a known way. A copy-on-write clone
// made by torch, for example, does neither.
bool can_share(const c10::StorageImpl& storage) {
  const c10::DataPtr& data = data_of(storage);
  bool known = data.get() == data.get_context() || shared_block(storage) != nullptr ||
               (!kPartsCanBeShared && is_copy_on_write(storage));
  return known && can_be_written_first(storage);
}

// Whether another storage sees writes to this storage.
bool is_aliased(const c10::StorageImpl& storage) {
  const SharedBlock* shared = shared_block(storage);
  // Torch's own copy-on-write needs a plain data pointer, so a block that was aliased once remains
  // aliased.
  if (!kPartsCanBeShared) return shared != nullptr;
  return shared != nullptr && shared->aliased && shared->storages > 1;
}

// Whether parts of the storage must now be copied: moved parts once made a write copy all of it.
bool parts_stay(const c10::StorageImpl& storage) {
  const SharedBlock* shared = shared_block(storage);
  return shared != nullptr && shared->parts_stay;
}

std::optional<CopyReason> why_not_share(const c10::StorageImpl& storage, const StorageRange& range,
                                        Sharing sharing) {
  if (!can_share(storage)) return CopyReason::kForeign;
  // An alias is the same memory, so exported pointers may see its writes.
  if (sharing == Sharing::kAlias) return std::nullopt;
  const bool is_part = range.offset_bytes != 0 || range.size_bytes != storage.nbytes();
  if (is_part && parts_stay(storage)) return CopyReason::kPartialStorage;
  if (is_aliased(storage)) return CopyReason::kAliased;
  const auto block = allocator().find(data_of(storage).get());
  return block && block->exported ? std::optional(CopyReason::kExported) : std::nullopt;
}

// Returns the storages over the block that share it copy-on-write, or have shared it. The first
// storage in the list was the first to share the block.
std::vector<c10::Storage> storages_over(const void* block) {
  std::vector<c10::Storage> out;
  for (const auto& weak : copy_on_write_storages.of(block)) {
    c10::Storage storage(weak.lock());
    if (!storage) continue;
    const auto found = allocator().find(storage.data());
    if (found && found->base == block) out.push_back(std::move(storage));
  }
  return out;
}

std::vector<c10::Storage> sharers_of(const void* block) {
  std::vector<c10::Storage> out = storages_over(block);
  std::erase_if(out, [](const c10::Storage& storage) {
    return !is_copy_on_write(*storage.unsafeGetStorageImpl());
  });
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
  // A write to a copy-on-write storage makes a copy, so an alias would not see that write. Give the
  // storage bytes of its own first.
  while (sharing == Sharing::kAlias && is_copy_on_write(storage)) {
    lock.unlock();
    storage.mutable_data();
    lock.lock();
  }
  if (const auto reason = why_not_share(storage, range, sharing)) return *reason;
  const auto block = allocator().find(data_of(storage).get());
  if (!block) return CopyReason::kForeign;
  // A storage without an allocator (torch.load creates some) could not copy itself.
  if (storage.allocator() == nullptr) storage.set_allocator(facades().of(storage.device()));
  if (sharing == Sharing::kAlias) return share_alias(storage, range, owner);
  c10::Storage other = share_copy_on_write(storage, range, owner);
  copy_on_write_storages.add(block->base, source);
  copy_on_write_storages.add(block->base, other);
  return other;
}

bool note_places_of_shared(std::size_t most_blocks) {
  CachingManagedAllocator* ours = process_allocator();
  if (ours == nullptr) return false;
  bool any_left = false;
  std::vector<c10::Storage> storages;  // destroyed after the unlock: a release may take the lock
  std::lock_guard lock(sharing_mutex);
  most_blocks = std::min(most_blocks, copy_on_write_storages.watched());
  for (const void* block : copy_on_write_storages.take_watched(most_blocks)) {
    PlaceSet places;
    std::vector<c10::Storage> over = storages_over(block);
    for (const c10::Storage& storage : over) places.add(place_of(storage.device()));
    if (over.size() > 1) copy_on_write_storages.watch(block);
    std::move(over.begin(), over.end(), std::back_inserter(storages));
    any_left |= FrameworkBridge(*ours).note_places(block, places);
  }
  return any_left;
}

UseThatEnds::UseThatEnds(const c10::StorageImpl& storage)
    : address_(storage.data()), place_(place_of(storage.device())) {
  CachingManagedAllocator* ours = process_allocator();
  const auto block = ours != nullptr ? ours->find(address_) : std::nullopt;
  if (!block) return;
  std::vector<c10::Storage> over;  // destroyed after the unlock: a release may take the lock
  std::lock_guard lock(sharing_mutex);
  over = storages_over(block->base);
  PlaceSet places;
  for (const c10::Storage& other : over) {
    if (other.unsafeGetStorageImpl() != &storage) places.add(place_of(other.device()));
  }
  has_ended_ = !places.has(place_) && FrameworkBridge(*ours).note_places(block->base, places);
}

void UseThatEnds::restore() const {
  if (has_ended_) FrameworkBridge(allocator()).note_place_again(address_, place_);
}

void note_exported(const void* address, const c10::StorageImpl* keeper) {
  CachingManagedAllocator& ours = allocator();
  std::vector<c10::Storage> sharers;
  {
    std::lock_guard lock(sharing_mutex);
    if (!FrameworkBridge(ours).mark_exported(address)) return;
    sharers = sharers_of(ours.find(address)->base);
  }
  // Separate the storage that keeps the address last. Without a keeper, the pointer was taken when
  // only one storage, the first in the list, used the block.
  std::ranges::stable_partition(sharers, [&](const c10::Storage& storage) {
    return storage.unsafeGetStorageImpl() == keeper;
  });
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
  // Separate the storages on devices first: they copy pages that are on the device. The host's
  // storage then keeps the block without a copy.
  std::stable_partition(storages.begin(), storages.end(),
                        [](const c10::Storage& storage) { return storage.device().is_cuda(); });
  for (const c10::Storage& storage : storages) {
    separate(storage);
    FrameworkBridge(allocator()).mark_exported(storage.data());
  }
}

void release_locks_in_child() {
  new (&sharing_mutex) std::mutex;
  release_writing_locks_in_child();
}

}  // namespace uvm::torch_plugin
