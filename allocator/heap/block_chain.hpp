// Blocks on their way between caches, fences and pools: with nobody, in no index and no cache. They
// are linked through their own records, so that however many there are no memory is needed to list
// them, and none can be lost for want of it. Last in, first out. Belongs to one thread, or to
// whoever guards what it is a member of.
#pragma once

#include <utility>

#include <uvmalloc/allocator/heap/block.hpp>

namespace uvm {

class BlockChain {
 public:
  BlockChain() = default;
  // What is in it would be lost: whoever has one empties it.
  BlockChain(const BlockChain&) = delete;
  BlockChain& operator=(const BlockChain&) = delete;
  BlockChain(BlockChain&& other) noexcept : first_(std::exchange(other.first_, nullptr)) {}

  bool empty() const { return first_ == nullptr; }
  // nullptr: it is empty.
  Block* first() const { return first_ == nullptr ? nullptr : Block::of_use(first_); }

  void push(Block* block) {
    block->use.next = first_;
    first_ = &block->use;
  }
  // It must not be empty.
  Block* pop() {
    Block* block = Block::of_use(first_);
    first_ = block->use.next;
    block->use.next = nullptr;
    return block;
  }
  // All of the other's in front.
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
