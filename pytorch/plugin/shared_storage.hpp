// Several storages over one block of ours, on different devices: a device move makes them instead
// of a copy. Copy-on-write: each storage behaves as if it had its own bytes, and gets them at its
// first write. The last one takes the block over without a copy. Alias: all see every write.
//
// Up to torch 2.12 copy-on-write is torch's own, whose data pointers torch recognises; it shares
// whole storages only. From 2.13 on a storage calls a function of ours before its first write, so
// parts of a storage can be shared as well.
//
// Any thread may share and write to the same storage at the same time; the locks are internal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <variant>

#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>
#include <c10/core/StorageImpl.h>
#include <torch/version.h>

#include <uvmalloc/place.hpp>
#include <uvmalloc/statistics.hpp>

namespace uvm::torch_plugin {

enum class Sharing : unsigned char { kCopyOnWrite, kAlias };

inline constexpr bool kPartsCanBeShared = TORCH_VERSION_MINOR >= 13;

inline Place place_of(c10::Device device) {
  return device.is_cuda() ? Place::device(device.index()) : Place::host();
}

struct StorageRange {
  std::size_t offset_bytes = 0;
  std::size_t size_bytes = 0;
};

// Where a storage is used, and what it asks for memory of its own.
struct StorageOwner {
  c10::Device device;
  c10::Allocator* allocator;
};

// Why the range must be copied: who owns its block is not known here, or the block is never to be
// shared copy-on-write. nullopt: it can be shared, if it is the allocator's. Another thread may
// change that at any time, so share() asks again.
std::optional<CopyReason> reason_not_to_share(const c10::StorageImpl& storage,
                                              const StorageRange& range, Sharing sharing);

// A second storage over that range, which `owner` gets, or reason_not_to_share(). Up to torch 2.12
// the range of a copy-on-write one is all of the storage. An alias may first give the storage bytes
// of its own.
std::variant<c10::Storage, CopyReason> share(const c10::Storage& storage, const StorageRange& range,
                                             const StorageOwner& owner, Sharing sharing);

// Tells the allocator at which places blocks are used that copy-on-write storages share: torch does
// not say when one side goes. Looks at up to `most_blocks` of them, in turn. True: a block is not
// used at some place any more, so limits may have room.
bool note_places_of_shared(std::size_t most_blocks = SIZE_MAX);

// The storage is about to get bytes of its own, so its place is not charged for the shared block
// any more, unless another storage there uses it. Without restore(), that stays.
class UseThatEnds {
 public:
  explicit UseThatEnds(const c10::StorageImpl& storage);
  void restore() const;

 private:
  const void* address_;
  Place place_;
  bool has_ended_ = false;
};

// A raw pointer into a block of ours leaves torch, and its storage had the block alone when the
// pointer was taken. From now on the block is not shared copy-on-write. Storages that have begun to
// share it since get bytes of their own. Throws as an allocation does.
void note_exported(const void* address);

// Every storage that is shared copy-on-write gets bytes of its own, at an address that stays.
// Storages on devices that share with others are copied, and the copies are over on return. Throws
// as an allocation does; some storages may have their bytes then.
void end_copy_on_write();

// In a forked child: other threads of the parent may have held the locks, waiting for the allocator
// while it copied for the child.
void release_locks_in_child();

// The first write to one side of storages that torch itself shares; `materialize` is torch's, and
// gets `storage`, a c10::StorageImpl.
void materialize_core(void* storage, void (*materialize)(void* storage));

}  // namespace uvm::torch_plugin
