// Several storages over one managed block, on different devices: a device move makes them instead
// of a copy. Copy-on-write: each storage behaves as if it had its own bytes, and gets them at its
// first write. The last one keeps the block without a copy. Alias: all storages see every write.
//
// Up to torch 2.12 this is torch's own copy-on-write, which shares whole storages only. From 2.13
// on a storage calls a function of the plugin before its first write, so parts of a storage can be
// shared as well.
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

// The device of a storage, and the allocator for bytes of its own.
struct StorageOwner {
  c10::Device device;
  c10::Allocator* allocator;
};

// Why the range must be copied: its block has an unknown owner, or must not be shared
// copy-on-write. nullopt: it can be shared if the allocator owns it. Another thread may change the
// answer at any time, so share() checks again.
std::optional<CopyReason> reason_not_to_share(const c10::StorageImpl& storage,
                                              const StorageRange& range, Sharing sharing);

// A second storage over the range, for `owner`; or reason_not_to_share(). Up to torch 2.12 a range
// that is shared copy-on-write must be the whole storage. An alias may first give the storage bytes
// of its own.
std::variant<c10::Storage, CopyReason> share(const c10::Storage& storage, const StorageRange& range,
                                             const StorageOwner& owner, Sharing sharing);

// Reports to the allocator which places use the blocks that copy-on-write storages share, because
// torch does not report when a storage goes. Checks up to `most_blocks` of them, in turn. True:
// some block is no longer used at a place, so limits may have room.
bool note_places_of_shared(std::size_t most_blocks = SIZE_MAX);

// For a storage that is about to get bytes of its own: its place stops being charged for the shared
// block, unless another storage there uses it. restore() undoes that.
class UseThatEnds {
 public:
  explicit UseThatEnds(const c10::StorageImpl& storage);
  void restore() const;

 private:
  const void* address_;
  Place place_;
  bool has_ended_ = false;
};

// A raw pointer into a managed block leaves torch. Its storage had the block alone when the pointer
// was taken. From now on the block is not shared copy-on-write, and storages that have begun to
// share it since get bytes of their own. Throws as an allocation does.
void note_exported(const void* address);

// Gives every storage that is shared copy-on-write bytes of its own, at an address that stays.
// Storages on devices that share with others are copied; the copies have ended on return. Throws as
// an allocation does; some storages may have their bytes then.
void end_copy_on_write();

// Call it in a forked child. Other threads of the parent may have held the locks while they waited
// for the allocator, which copied for the child.
void release_locks_in_child();

// The first write to `storage`, a c10::StorageImpl that torch itself shares. `materialize` is
// torch's own function for it.
void materialize_core(void* storage, void (*materialize)(void* storage));

}  // namespace uvm::torch_plugin
