// A list of blocks that are in transit between caches, fences and pools. These blocks are in no
// index or cache, and no caller owns them. The list links the blocks' records, so adding a block
// needs no memory and cannot fail. Last in, first out. Used by one thread, or guarded by its
// owner's lock.
#pragma once

#include <utility>

#include "allocator/heap/block.hpp"

namespace uvm {

class BlockChain {
 public:
  BlockChain() = default;
  // Not assignable: an assignment would lose the target's blocks. A chain must be empty when it is
  // destroyed.
  BlockChain(const BlockChain&) = delete;
  BlockChain& operator=(const BlockChain&) = delete;
  BlockChain(BlockChain&& other) noexcept : first_(std::exchange(other.first_, nullptr)) {}

  bool empty() const { return first_ == nullptr; }
  Block* first() const { return first_ == nullptr ? nullptr : Block::of_use(first_); }

  void push(Block* block) {
    block->use.next = first_;
    first_ = &block->use;
  }
  // The chain must not be empty.
  Block* pop() {
    Block* block = Block::of_use(first_);
    first_ = block->use.next;
    block->use.next = nullptr;
    return block;
  }
  // Puts all blocks of the other chain in front of this chain's blocks.
  void take(BlockChain other) {
    if (empty()) std::swap(first_, other.first_);
    while (!other.empty()) push(other.pop());
  }

  template <class Visit>
  void each(Visit visit) const {
    for (IndirectStorage* at = first_; at != nullptr; at = at->next) visit(*Block::of_use(at));
  }

 private:
  IndirectStorage* first_ = nullptr;
};

}  // namespace uvm
