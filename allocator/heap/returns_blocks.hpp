// Lets lower layers, such as thread caches and fences, give blocks back to the engine.
#pragma once

#include <vector>

#include "allocator/heap/block_chain.hpp"
#include "allocator/heap/stream_key.hpp"

namespace uvm {

class ReturnsBlocks {
 public:
  virtual ~ReturnsBlocks() = default;

  // Frees the block that starts at `address`, like a free by its owner. Takes the state lock.
  virtual void free_block(void* address) noexcept = 0;
  // Takes back blocks that no caller and no stream uses. Takes the state lock.
  virtual void give_back(BlockChain blocks) = 0;
  // Called by an ending thread, without locks, with the blocks of its cache and the first pools of
  // the streams that it used.
  virtual void end_thread(BlockChain blocks, const std::vector<StreamIndex>& streams) = 0;
};

}  // namespace uvm
