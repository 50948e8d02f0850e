// Free blocks by size, then by address: best fit at the lowest address. A bin per eighth of a power
// of two holds a small tree, and a bitmap says which bins hold any, so that the usual search looks
// at one word of the map and at one or two nodes. Exact: the result is the same as that of one tree
// over all blocks.
//
// The tree's nodes lie in the blocks (Block::node), so nothing is allocated. Guarded by the
// allocator's lock.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include <boost/intrusive/set.hpp>

#include <uvmalloc/allocator/block.hpp>

namespace uvm {

class FreeIndex {
 public:
  void insert(RunBlock* block) {
    std::size_t bin = bin_of(block->size_bytes());
    bins_[bin].insert(*block);
    words_[bin / 64] |= std::uint64_t{1} << (bin % 64);
    bytes_ += block->size_bytes();
  }

  // The block must be in it, with the size it was inserted with.
  void erase(RunBlock* block) {
    std::size_t bin = bin_of(block->size_bytes());
    bins_[bin].erase(Tree::s_iterator_to(*block));
    if (bins_[bin].empty()) words_[bin / 64] &= ~(std::uint64_t{1} << (bin % 64));
    bytes_ -= block->size_bytes();
  }

  // The smallest block of at least `size_bytes`, of those the lowest; nullptr where there is none.
  RunBlock* best_fit(std::size_t size_bytes) {
    std::size_t bin = bin_of(size_bytes);
    if (Tree& tree = bins_[bin]; !tree.empty()) {
      auto found = tree.lower_bound(size_bytes, SizeLess{});
      if (found != tree.end()) return &*found;
    }
    std::size_t next = next_filled(bin + 1);
    return next == kBins ? nullptr : &*bins_[next].begin();
  }

  // The block after it in the order of the index.
  RunBlock* after(RunBlock* block) {
    std::size_t bin = bin_of(block->size_bytes());
    auto next = ++Tree::s_iterator_to(*block);
    if (next != bins_[bin].end()) return &*next;
    std::size_t filled = next_filled(bin + 1);
    return filled == kBins ? nullptr : &*bins_[filled].begin();
  }

  RunBlock* smallest() { return best_fit(0); }
  const RunBlock* largest() const {
    for (std::size_t word = kWords; word-- > 0;) {
      if (words_[word] == 0) continue;
      std::size_t bin = word * 64 + 63 - static_cast<std::size_t>(std::countl_zero(words_[word]));
      return &*bins_[bin].rbegin();
    }
    return nullptr;
  }

  std::size_t free_bytes() const { return bytes_; }
  bool empty() const { return bytes_ == 0; }

 private:
  struct Nodes {  // how the tree finds a block's node
    using node_traits = boost::intrusive::rbtree_node_traits<void*, true>;
    using node_ptr = node_traits::node_ptr;
    using const_node_ptr = node_traits::const_node_ptr;
    using value_type = RunBlock;
    using pointer = RunBlock*;
    using const_pointer = const RunBlock*;
    static constexpr boost::intrusive::link_mode_type link_mode = boost::intrusive::normal_link;
    static node_ptr to_node_ptr(RunBlock& block) { return &block.node; }
    static const_node_ptr to_node_ptr(const RunBlock& block) { return &block.node; }
    static pointer to_value_ptr(node_ptr node) { return of_node(node); }
    static const_pointer to_value_ptr(const_node_ptr node) {
      return of_node(const_cast<node_ptr>(node));
    }
    static RunBlock* of_node(node_ptr node) {
      auto* block = reinterpret_cast<Block*>(reinterpret_cast<char*>(node) - offsetof(Block, node));
      return static_cast<RunBlock*>(block);
    }
  };
  struct SizeLess {
    bool operator()(const RunBlock& block, std::size_t size_bytes) const {
      return block.size_bytes() < size_bytes;
    }
    bool operator()(std::size_t size_bytes, const RunBlock& block) const {
      return size_bytes < block.size_bytes();
    }
  };
  struct SizeThenAddress {
    bool operator()(const RunBlock& left, const RunBlock& right) const {
      return left.size_bytes() != right.size_bytes() ? left.size_bytes() < right.size_bytes()
                                                     : left.address() < right.address();
    }
  };
  using Tree = boost::intrusive::set<RunBlock, boost::intrusive::value_traits<Nodes>,
                                     boost::intrusive::compare<SizeThenAddress>,
                                     boost::intrusive::constant_time_size<false>>;

  // Eighths of powers of two, from one granule up; sizes from kLargest on share the last bin.
  static constexpr std::size_t kSteps = 8;
  static constexpr std::size_t kOctaves = 34;
  static constexpr std::size_t kBins = (kOctaves + 1) * kSteps;
  static constexpr std::size_t kWords = (kBins + 63) / 64;

  static std::size_t bin_of(std::size_t size_bytes) {
    std::size_t granules = size_bytes / kGranule;
    if (granules < kSteps) return granules;
    auto octave =
        static_cast<std::size_t>(std::bit_width(granules)) - 4;  // granules >> octave is 8..15
    std::size_t bin = (octave + 1) * kSteps + ((granules >> octave) - kSteps);
    return bin < kBins ? bin : kBins - 1;
  }
  std::size_t next_filled(std::size_t bin) const {
    std::size_t word = bin / 64;
    if (bin >= kBins) return kBins;
    std::uint64_t bits = words_[word] & (~std::uint64_t{0} << (bin % 64));
    while (bits == 0) {
      if (++word == kWords) return kBins;
      bits = words_[word];
    }
    return word * 64 + static_cast<std::size_t>(std::countr_zero(bits));
  }

  std::array<Tree, kBins> bins_;
  std::array<std::uint64_t, kWords> words_{};
  std::size_t bytes_ = 0;
};

}  // namespace uvm
