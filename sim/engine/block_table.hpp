// All blocks of memory that can migrate, by index: first the blocks of the managed arena, then the
// blocks of ordinary memory. Blocks are created at first use. Guarded by the machine's mutex.
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <vector>

#include "sim/engine/block.hpp"
#include "sim/engine/page_range.hpp"

namespace uvmsim {

class BlockTable {
 public:
  BlockTable(std::size_t arena_blocks, std::size_t device_count)
      : blocks_(arena_blocks), device_count_(device_count) {}

  Block& at(std::size_t index) {
    if (index < blocks_.size() && blocks_[index] != nullptr) return *blocks_[index];
    return found_or_made(index);
  }
  // Returns null if the block has not been used yet.
  const Block* find(std::size_t index) const;

  bool is_ordinary(const Block& block) const { return block.index >= blocks_.size(); }
  // Returns the block's index among the blocks of ordinary memory.
  std::size_t ordinary_index(const Block& block) const { return block.index - blocks_.size(); }

  // Calls visit(block, first, count) for each block until a call returns false. `first` counts
  // pages within the block.
  template <class Visit>
  void each_piece(PageRange pages, Visit visit) {
    for (std::size_t page = pages.first; page < pages.last;) {
      const std::size_t first = page % kPagesPerBlock;
      const std::size_t count = std::min(kPagesPerBlock - first, pages.last - page);
      if (!visit(at(page / kPagesPerBlock), first, count)) return;
      page += count;
    }
  }

  // Calls visit(block, mask) for each block, after opening it.
  template <class Visit>
  void each_open(PageRange pages, Visit visit) {
    each_piece(pages, [&](Block& block, std::size_t first, std::size_t count) {
      block.open();
      return visit(block, page_mask(first, count));
    });
  }

  // Like each_open(), but skips blocks whose pages are all at one location, because these blocks
  // need no work.
  template <class Visit>
  void each_mixed(PageRange pages, Visit visit) {
    each_piece(pages, [&](Block& block, std::size_t first, std::size_t count) {
      if (block.place() >= kHost) return true;
      block.open();
      return visit(block, page_mask(first, count));
    });
  }

  // Drops the blocks of ordinary memory for which drop(block) returns true.
  template <class Drop>
  void erase_ordinary_if(Drop drop) {
    std::erase_if(ordinary_blocks_, [&](const auto& item) { return drop(*item.second); });
  }

  std::vector<const Block*> all() const;

 private:
  Block& found_or_made(std::size_t index);

  std::vector<std::unique_ptr<Block>> blocks_;
  std::map<std::size_t, std::unique_ptr<Block>> ordinary_blocks_;
  std::size_t device_count_;
};

}  // namespace uvmsim
