#include "sim/engine/block_table.hpp"

namespace uvmsim {

Block& BlockTable::found_or_made(std::size_t index) {
  auto& block = index < blocks_.size() ? blocks_[index] : ordinary_blocks_[index];
  if (!block) block = std::make_unique<Block>(index, device_count_);
  return *block;
}

const Block* BlockTable::find(std::size_t index) const {
  if (index < blocks_.size()) return blocks_[index].get();
  const auto found = ordinary_blocks_.find(index);
  return found == ordinary_blocks_.end() ? nullptr : found->second.get();
}

std::vector<const Block*> BlockTable::all() const {
  std::vector<const Block*> found;
  for (const auto& block : blocks_) {
    if (block != nullptr) found.push_back(block.get());
  }
  for (const auto& [index, block] : ordinary_blocks_) found.push_back(block.get());
  return found;
}

}  // namespace uvmsim
