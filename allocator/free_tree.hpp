// Free blocks by size, then by address, each node with the lowest block below it: the best fit is
// found on one way down, the lowest block at once. A treap: what would be random in it is a hash of
// the block's address, so the same blocks always make the same tree, of logarithmic depth.
//
// The nodes lie in the blocks (Block::node), so nothing is allocated. Guarded by the allocator's
// lock.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <uvmalloc/allocator/block.hpp>
#include <uvmalloc/allocator/fibonacci_hash.hpp>

namespace uvm {

class FreeTree {
 public:
  void insert(RunBlock* block) {
    const BlockKey self = key_of(block);
    if (empty()) {
      block->node = {nullptr, nullptr, self};
      root_ = block;
      return;
    }
    const std::uint64_t rank = rank_of(block);
    RunBlock** link = &root_;
    while (*link != nullptr && rank_of(*link) >= rank) {
      RunBlock* at = *link;
      at->node.lowest = std::min(at->node.lowest, self);
      link = way_to(block, at);
    }
    split(*link, block, &block->node.left, &block->node.right);
    *link = block;
    update(block);
  }

  // The block must be in it, at the address and with the size it was inserted with.
  void erase(RunBlock* block) { erase(block, &root_); }

  bool empty() const { return root_ == nullptr; }
  BlockKey lowest() const { return lowest_below(root_); }

  // The smallest block of at least `size_bytes`, of those the lowest; nullptr where there is none.
  RunBlock* best_fit(std::size_t size_bytes) const {
    RunBlock* best = nullptr;
    for (RunBlock* at = root_; at != nullptr;) {
      bool fits = at->size_bytes() >= size_bytes;
      if (fits) best = at;
      at = fits ? at->node.left : at->node.right;
    }
    return best;
  }

  // The next block in the order of the tree; nullptr behind the last.
  RunBlock* after(const RunBlock* block) const {
    RunBlock* next = nullptr;
    for (RunBlock* at = root_; at != nullptr;) {
      bool later = is_before(block, at);
      if (later) next = at;
      at = later ? at->node.left : at->node.right;
    }
    return next;
  }

  const RunBlock* largest() const {
    const RunBlock* at = root_;
    while (at != nullptr && at->node.right != nullptr) at = at->node.right;
    return at;
  }

 private:
  // Mixed twice, so that blocks at regular distances get irregular ranks.
  static std::uint64_t rank_of(const RunBlock* block) {
    std::uint64_t bits = address_of(block->address()) * kFibonacci;
    return (bits ^ (bits >> 32)) * 0xD6E8FEB86659FD93ull;
  }
  static bool is_before(const RunBlock* left, const RunBlock* right) {
    return left->size_bytes() != right->size_bytes() ? left->size_bytes() < right->size_bytes()
                                                     : left->address() < right->address();
  }
  static BlockKey lowest_below(const RunBlock* tree) {
    return tree == nullptr ? kNoBlock : tree->node.lowest;
  }
  static RunBlock** way_to(const RunBlock* block, RunBlock* from) {
    return is_before(block, from) ? &from->node.left : &from->node.right;
  }
  static void update(RunBlock* block) {
    block->node.lowest =
        std::min({key_of(block), lowest_below(block->node.left), lowest_below(block->node.right)});
  }
  // After a part with this lowest block has left the tree below `block`. Who was not the lowest
  // changes nothing, and the other subtree, which lies elsewhere in memory, is not looked at.
  static void update_without(RunBlock* block, BlockKey lowest) {
    if (block->node.lowest == lowest) update(block);
  }
  // What is before `at` and what is not.
  static void split(RunBlock* tree, const RunBlock* at, RunBlock** before, RunBlock** rest) {
    if (tree == nullptr) {
      *before = *rest = nullptr;
    } else if (is_before(tree, at)) {
      split(tree->node.right, at, &tree->node.right, rest);
      update_without(tree, lowest_below(*rest));
      *before = tree;
    } else {
      split(tree->node.left, at, before, &tree->node.left);
      update_without(tree, lowest_below(*before));
      *rest = tree;
    }
  }
  static RunBlock* merge(RunBlock* before, RunBlock* rest) {
    if (before == nullptr) return rest;
    if (rest == nullptr) return before;
    const BlockKey lowest = std::min(before->node.lowest, rest->node.lowest);
    RunBlock* top = before;
    if (rank_of(before) >= rank_of(rest)) {
      before->node.right = merge(before->node.right, rest);
    } else {
      top = rest;
      rest->node.left = merge(before, rest->node.left);
    }
    top->node.lowest = lowest;
    return top;
  }
  static void erase(RunBlock* block, RunBlock** link) {
    RunBlock* at = *link;
    if (at == block) {
      *link = merge(block->node.left, block->node.right);
      return;
    }
    erase(block, way_to(block, at));
    update_without(at, key_of(block));
  }

  RunBlock* root_ = nullptr;
};

}  // namespace uvm
