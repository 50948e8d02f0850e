// One block under several storages: their count, and how a storage is made to share the block.
// sharing_mutex guards all of it.
#pragma once

#include <cstddef>
#include <mutex>

#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>
#include <c10/core/StorageImpl.h>

#include "pytorch/plugin/shared_storage.hpp"

namespace uvm::torch_plugin {

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

// Guards who shares what. It is held for a few instructions.
extern std::mutex sharing_mutex;

// Tells the allocator that no storage of the host lies over the block any more. Called with the
// lock, so that a move to the host comes before or after.
void note_left_host(const void* address);

// Whether `deleter` belongs to a storage that covers all of its block.
bool is_releaser_of_whole(c10::DeleterFnPtr deleter);

const c10::DataPtr& data_of(const c10::StorageImpl& storage);

// Returns nullptr if the storage does not share its block by a SharedBlock.
SharedBlock* shared_block(const c10::StorageImpl& storage);

// Puts `next` in place and returns the context before. The address stays the same throughout: other
// threads may be reading it. The caller lets go of the context without the lock.
void* exchange_context(c10::StorageImpl& storage, c10::DataPtr next);

// Makes a block that the storage has for itself one that can be shared.
SharedBlock* make_shared_block(c10::StorageImpl& storage);

// A storage over a range of `storage`, for `owner`.
c10::Storage storage_over(SharedBlock* shared, const c10::StorageImpl& storage,
                          const StorageRange& range, const StorageOwner& owner);

}  // namespace uvm::torch_plugin
