// One block under several storages: counts the storages, and makes a storage share the block.
// sharing_mutex guards all of this.
#pragma once

#include <cstddef>
#include <mutex>

#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>
#include <c10/core/StorageImpl.h>

#include "pytorch/plugin/shared_storage.hpp"

namespace uvm::torch_plugin {

struct SharedBlock {
  c10::DataPtr block;  // its destructor frees the block
  std::size_t size_bytes = 0;
  std::size_t storages = 0;
  std::size_t on_host = 0;        // storages on the host
  std::size_t parts = 0;          // storages that cover less than the block
  bool aliased = false;           // true: all storages see every write
  bool on_several_cards = false;  // storages on several devices share the block, or have shared it
  bool parts_stay = false;
};

// Guards which storages share which block. Held for a few instructions at a time.
extern std::mutex sharing_mutex;

// Reports to the allocator that no host storage uses the block any more. Call it with sharing_mutex
// held, so that the report is ordered with moves to the host.
void note_left_host(const void* address);

// Whether `deleter` belongs to a storage that covers its whole block.
bool is_releaser_of_whole(c10::DeleterFnPtr deleter);

const c10::DataPtr& data_of(const c10::StorageImpl& storage);

// Returns nullptr if the storage does not share its block through a SharedBlock.
SharedBlock* shared_block(const c10::StorageImpl& storage);

// Installs `next` and returns the previous context. The caller releases that context without the
// lock. The storage has a valid address at all times, because other threads may be reading it.
void* exchange_context(c10::StorageImpl& storage, c10::DataPtr next);

// Makes the storage's block shareable. No other storage may use the block yet.
SharedBlock* make_shared_block(c10::StorageImpl& storage);

// Returns a storage over a range of `storage`, for `owner`.
c10::Storage storage_over(SharedBlock* shared, const c10::StorageImpl& storage,
                          const StorageRange& range, const StorageOwner& owner);

}  // namespace uvm::torch_plugin
