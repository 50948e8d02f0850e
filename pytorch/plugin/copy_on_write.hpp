// Storages that share a block copy-on-write, and their first writes (Note "Copy-on-write"). Up to
// torch 2.12, torch itself shares the block, and the preload library intercepts its first writes.
// From 2.13 on, a storage calls a function of the plugin before its first write.
#pragma once

#include <c10/core/Storage.h>
#include <c10/core/StorageImpl.h>

#include "pytorch/plugin/shared_storage.hpp"

namespace uvm::torch_plugin {

// Gives the storage its own bytes, which any stream may use when the function returns. Call it
// without sharing_mutex.
void separate(const c10::Storage& storage);

// Hold sharing_mutex during calls of the functions up to can_be_written_first().

// Returns a second storage over the range, for `owner`.
c10::Storage share_copy_on_write(c10::StorageImpl& storage, const StorageRange& range,
                                 const StorageOwner& owner);

bool is_copy_on_write(const c10::StorageImpl& storage);

// Whether the plugin can intercept the first write. False if other code has already registered a
// function for the storage's first write.
bool can_be_written_first(const c10::StorageImpl& storage);

// Call it in a forked child, without holding sharing_mutex.
void release_writing_locks_in_child();

}  // namespace uvm::torch_plugin
