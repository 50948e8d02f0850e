// Several storages over one managed block, on different devices. A device move creates a second
// storage instead of a copy. Copy-on-write: each storage behaves as if it had its own bytes, and
// gets its own bytes at its first write. The last storage keeps the block without a copy. Alias:
// all storages see every write.
//
// Up to torch 2.12, torch's own copy-on-write is used, which shares only whole storages. From 2.13
// on, a storage calls a function of the plugin before its first write, so parts of a storage can be
// shared as well.
//
// Any thread may share and write to the same storage at the same time: the locks are internal.
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

// The device of a storage, and the allocator for a copy of its bytes.
struct StorageOwner {
  c10::Device device;
  c10::Allocator* allocator;
};

// Returns why the range must be copied: its block has an unknown owner, or must not be shared
// copy-on-write. Returns nullopt if the range can be shared, provided that the allocator owns the
// block. Another thread may change the answer at any time, so share() checks again.
std::optional<CopyReason> reason_not_to_share(const c10::StorageImpl& storage,
                                              const StorageRange& range, Sharing sharing);

// Returns a second storage over the range, for `owner`, or the result of reason_not_to_share(). Up
// to torch 2.12, a range that is shared copy-on-write must be the whole storage. For an alias,
// share() may first give the storage bytes of its own.
std::variant<c10::Storage, CopyReason> share(const c10::Storage& storage, const StorageRange& range,
                                             const StorageOwner& owner, Sharing sharing);

// Reports to the allocator which places use the blocks that copy-on-write storages share, because
// torch does not report when a storage is released. Checks up to `most_blocks` blocks in rotation.
// Returns true if some block is no longer used at a place, so that limits may have room.
bool note_places_of_shared(std::size_t most_blocks = SIZE_MAX);

// For a storage that is about to get bytes of its own: stops charging the shared block to the
// storage's place, unless another storage there uses the block. restore() undoes that.
class UseThatEnds {
 public:
  explicit UseThatEnds(const c10::StorageImpl& storage);
  void restore() const;

 private:
  const void* address_;
  Place place_;
  bool has_ended_ = false;
};

// Call it when a raw pointer into a managed block leaves torch. From now on the block is not shared
// copy-on-write: `keeper` keeps it, and the other storages over it get bytes of their own. If the
// keeper is a small part of the block, it gets bytes of its own too. If `keeper` is nullptr, only
// the storage of the pointer used the block when the pointer was taken, and storages that have
// begun to share the block since get their own bytes. Throws the same errors as an allocation.
void note_exported(const void* address, const c10::StorageImpl* keeper = nullptr);

// Gives every storage that is shared copy-on-write bytes of its own, at an address that no longer
// changes. If storages share a block, those on devices copy it; the copies are complete on return.
// Throws the same errors as an allocation; then some storages may already have been separated.
void end_copy_on_write();

// Call it in a forked child. Other threads of the parent may have held the locks at the fork, while
// they waited for the allocator.
void release_locks_in_child();

// Handles the first write to `storage`, a c10::StorageImpl that torch itself shares. `materialize`
// is torch's own function for such a write.
void materialize_core(void* storage, void (*materialize)(void* storage));

}  // namespace uvm::torch_plugin
