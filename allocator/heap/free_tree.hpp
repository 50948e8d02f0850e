// A tree of free blocks, ordered by size and then by address. Each node has the key of the lowest
// block in its subtree. So one descent finds the best fit, and the root names the lowest block. The
// tree is a treap with hashes of the blocks' addresses as ranks: the same blocks always make the
// same tree, of logarithmic depth.
//
// The nodes are in the blocks' records (Block::node) and refer to each other by block ID, so
// nothing is allocated. Every call must pass the same store of records. Guarded by the state lock.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "allocator/base/fibonacci_hash.hpp"
#include "allocator/heap/block.hpp"
#include "allocator/heap/page_block_store.hpp"

namespace uvm {

class FreeTree {
 public:
  using Records = const PageBlockStore&;

  // Usually the tree has no other block, so only that case is inlined.
  [[gnu::always_inline]] void insert(Records records, PageBlock* block) {
    if (empty()) {
      block->node = {0, 0, key_of(block)};
      root_ = block->id;
    } else {
      insert_among_others(records, block);
    }
  }

  // The block must be in the tree, and have the address and size that it was inserted with.
  [[gnu::always_inline]] void erase(Records records, PageBlock* block) {
    const Block::IndexNode& node = block->node;
    if (root_ == block->id && (node.left == 0 || node.right == 0)) {
      root_ = node.left | node.right;
    } else {
      erase(records, block, &root_);
    }
  }

  // Defines the order of the tree.
  static bool is_before(const PageBlock* left, const PageBlock* right) {
    return left->size_bytes() != right->size_bytes() ? left->size_bytes() < right->size_bytes()
                                                     : left->address() < right->address();
  }

  bool empty() const { return root_ == 0; }
  BlockKey lowest(Records records) const { return lowest_below(records, root_); }

  // Returns the smallest block of at least `size_bytes`, the lowest of equal ones, or nullptr.
  PageBlock* best_fit(Records records, std::size_t size_bytes) const {
    PageBlock* best = nullptr;
    for (std::uint32_t id = root_; id != 0;) {
      PageBlock* at = records.at(id);
      bool fits = at->size_bytes() >= size_bytes;
      if (fits) best = at;
      id = fits ? at->node.left : at->node.right;
    }
    return best;
  }

  // Returns the next block in the order of the tree, or nullptr after the last block.
  PageBlock* after(Records records, const PageBlock* block) const {
    PageBlock* next = nullptr;
    for (std::uint32_t id = root_; id != 0;) {
      PageBlock* at = records.at(id);
      bool later = is_before(block, at);
      if (later) next = at;
      id = later ? at->node.left : at->node.right;
    }
    return next;
  }

  const PageBlock* largest(Records records) const {
    const PageBlock* at = records.find(root_);
    while (at != nullptr && at->node.right != 0) at = records.at(at->node.right);
    return at;
  }

 private:
  // Multiplies twice, so that blocks at regular distances get irregular ranks.
  static std::uint64_t rank_of(const PageBlock* block) {
    std::uint64_t bits = address_of(block->address()) * kFibonacci;
    return (bits ^ (bits >> 32)) * 0xD6E8FEB86659FD93ull;
  }
  // Returns kNoBlock for an empty tree, without a branch (PageBlockStore::at).
  static BlockKey lowest_below(Records records, std::uint32_t tree) {
    return records.at(tree)->node.lowest;
  }
  [[gnu::noinline]] void insert_among_others(Records records, PageBlock* block) {
    const BlockKey self = key_of(block);
    const std::uint64_t rank = rank_of(block);
    std::uint32_t* link = &root_;
    while (*link != 0) {
      PageBlock* at = records.at(*link);
      if (rank_of(at) < rank) break;
      at->node.lowest = std::min(at->node.lowest, self);
      link = way_to(block, at);
    }
    split(records, *link, block, &block->node.left, &block->node.right);
    *link = block->id;
    update(records, block);
  }
  static std::uint32_t* way_to(const PageBlock* block, PageBlock* from) {
    return is_before(block, from) ? &from->node.left : &from->node.right;
  }
  static void update(Records records, PageBlock* block) {
    block->node.lowest = std::min({key_of(block), lowest_below(records, block->node.left),
                                   lowest_below(records, block->node.right)});
  }
  // Updates `block` after blocks whose lowest key is `lowest` have left its subtree. If the
  // subtree's lowest key is not `lowest`, nothing changes, and the children are not read from
  // memory.
  static void update_without(Records records, PageBlock* block, BlockKey lowest) {
    if (block->node.lowest == lowest) update(records, block);
  }
  // Splits `tree` into the blocks before `at` and the rest.
  static void split(Records records, std::uint32_t tree, const PageBlock* at, std::uint32_t* before,
                    std::uint32_t* rest) {
    if (tree == 0) {
      *before = *rest = 0;
      return;
    }
    PageBlock* top = records.at(tree);
    if (is_before(top, at)) {
      split(records, top->node.right, at, &top->node.right, rest);
      update_without(records, top, lowest_below(records, *rest));
      *before = tree;
    } else {
      split(records, top->node.left, at, before, &top->node.left);
      update_without(records, top, lowest_below(records, *before));
      *rest = tree;
    }
  }
  static std::uint32_t merge(Records records, std::uint32_t before, std::uint32_t rest) {
    if (before == 0) return rest;
    if (rest == 0) return before;
    PageBlock* left = records.at(before);
    PageBlock* right = records.at(rest);
    const BlockKey lowest = std::min(left->node.lowest, right->node.lowest);
    if (rank_of(left) >= rank_of(right)) {
      left->node.right = merge(records, left->node.right, rest);
      left->node.lowest = lowest;
      return before;
    }
    right->node.left = merge(records, before, right->node.left);
    right->node.lowest = lowest;
    return rest;
  }
  [[gnu::noinline]] static void erase(Records records, PageBlock* block, std::uint32_t* link) {
    if (*link == block->id) {
      *link = merge(records, block->node.left, block->node.right);
      return;
    }
    PageBlock* at = records.at(*link);
    erase(records, block, way_to(block, at));
    update_without(records, at, key_of(block));
  }

  std::uint32_t root_ = 0;
};

}  // namespace uvm
