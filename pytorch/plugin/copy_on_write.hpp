// Storages that share a block copy-on-write, and their first writes. Up to torch 2.12 torch shares
// the block, and calls us for a first write. From 2.13 on a storage calls a function of ours before
// its first write.
#pragma once

#include <c10/core/Storage.h>
#include <c10/core/StorageImpl.h>

#include "pytorch/plugin/shared_storage.hpp"

namespace uvm::torch_plugin {

// The storage's bytes are its own on return, and any stream may use them. Call it without
// sharing_mutex.
void separate(const c10::Storage& storage);

// All that follow: with sharing_mutex.

// A second storage over the range, for `owner`.
c10::Storage share_copy_on_write(c10::StorageImpl& storage, const StorageRange& range,
                                 const StorageOwner& owner);

bool is_copy_on_write(const c10::StorageImpl& storage);

// Whether a first write can be noticed. A storage that waits for another owner's first write cannot
// wait for ours.
bool can_be_written_first(const c10::StorageImpl& storage);

// In a forked child, without sharing_mutex.
void release_writing_locks_in_child();

}  // namespace uvm::torch_plugin
