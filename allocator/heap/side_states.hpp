// Stores the side states of the few blocks that have one. Guarded by the state lock.
#pragma once

#include <functional>
#include <unordered_map>
#include <utility>

#include "allocator/heap/block.hpp"

namespace uvm {

class SideStates {
 public:
  BlockSideState* find(const Block* block) {
    auto found = states_.find(block);
    return found == states_.end() ? nullptr : &found->second;
  }
  // Returns the block's side state; makes one if the block has none.
  BlockSideState& make(Block* block) {
    block->has_no_side_state = false;
    return states_[block];
  }
  void drop(const Block* block) { states_.erase(block); }
  // Moves a side state to another block. Allocates nothing.
  void transfer(Block* from, Block* to) noexcept {
    auto state = states_.extract(from);
    if (state.empty()) return;
    state.key() = to;
    states_.insert(std::move(state));
    to->has_no_side_state = false;
    from->has_no_side_state = true;
  }
  void each(const std::function<void(BlockSideState&)>& visit) {
    for (auto& [block, state] : states_) visit(state);
  }
  void each_block(const std::function<void(const Block&, const BlockSideState&)>& visit) const {
    for (const auto& [block, state] : states_) visit(*block, state);
  }

 private:
  std::unordered_map<const Block*, BlockSideState> states_;
};

}  // namespace uvm
