// Remembers the records of the blocks that a thread allocated last, by address, so that most frees
// need no search in the page directory. Written by its thread alone.
#pragma once

#include <array>
#include <cstddef>

#include "allocator/base/fibonacci_hash.hpp"
#include "allocator/heap/block.hpp"
#include "allocator/policy/allocation_policy.hpp"

namespace uvm {

class RecentBlocks {
 public:
  void remember(Block* block) { blocks_[slot_of(block->address())] = block; }
  // Returns the block that the thread last allocated at `address`, or nullptr if a later block has
  // taken its slot. A record counts only if it still has this address.
  Block* at(const void* address) const {
    Block* block = blocks_[slot_of(address)];
    return block != nullptr && block->starts_at(address) ? block : nullptr;
  }

 private:
  static std::size_t slot_of(const void* address) {
    return fibonacci_slot<policy::kKnownBlockBits>(address_of(address));
  }

  std::array<Block*, std::size_t{1} << policy::kKnownBlockBits> blocks_{};
};

}  // namespace uvm
