// Several storages over one block of ours, on different devices: what a device move makes instead
// of a copy. Copy-on-write: each behaves as if it had its own bytes, and gets them when it is first
// written to; the last one takes the block over without a copy. Alias: all see every write.
//
// Up to torch 2.12 copy-on-write is torch's own, whose data pointers torch recognises; it shares
// whole storages only. From 2.13 on a storage calls a function of ours before its first write, so
// parts of a storage can be shared as well.
//
// Any thread may share and write to the same storage at the same time; the locks are internal.
#pragma once

#include <cstddef>

#include <c10/core/Storage.h>
#include <c10/core/StorageImpl.h>
#include <torch/version.h>

namespace uvm::torch_plugin {

enum class Sharing : unsigned char { kCopyOnWrite, kAlias };

inline constexpr bool kPartsCanBeShared = TORCH_VERSION_MINOR >= 13;

struct StorageRange {
  std::size_t offset_bytes = 0;
  std::size_t size_bytes = 0;
};

// The storage's bytes are in a block that it owns or shares in a way that is known here; not those
// of a core copy-on-write clone, for example.
bool can_share(const c10::StorageImpl& storage);

// Another storage sees what is written here: it must not be shared copy-on-write.
bool is_aliased(const c10::StorageImpl& storage);

// A part had moved when the whole was written to, so that all of it had to be copied: parts of this
// storage are copied from then on.
bool parts_stay(const c10::StorageImpl& storage);

// A second storage over that range, on `device`. The storage can be shared; for a copy-on-write one
// it is not aliased, and up to torch 2.12 the range is all of it.
c10::Storage share(const c10::Storage& storage, const StorageRange& range, c10::Device device,
                   Sharing sharing);

// Every storage that is shared copy-on-write gets bytes of its own, at an address that stays: those
// on devices by copies, which are over on return, where others share with them. Throws as an
// allocation does, with some of it done.
void end_copy_on_write();

// In a forked child: other threads of the parent may have held the locks, waiting for the allocator
// while it copied for the child.
void release_locks_in_child();

// The first write to one side of storages that torch itself shares; `materialize` is torch's, and
// gets `storage`, a c10::StorageImpl.
void materialize_core(void* storage, void (*materialize)(void* storage));

}  // namespace uvm::torch_plugin
