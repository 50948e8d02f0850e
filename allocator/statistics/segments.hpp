// Lists how the memory of an allocator is cut into blocks, for segment viewers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "allocator/heap/block.hpp"

namespace uvm {

// A range of blocks without gaps between them.
struct SegmentDescription {
  void* base = nullptr;
  std::size_t size_bytes = 0;
  Facade facade = Facade::kHost;
  int device = 0;
  StreamHandle stream = nullptr;
  bool is_of_small_objects = false;
  std::uint64_t private_pool = 0;  // 0: none
  struct Piece {
    std::size_t size_bytes = 0;
    std::size_t requested_bytes = 0;  // if the block is live or waits for its fences
    BlockState state = BlockState::kFree;
  };
  std::vector<Piece> blocks;  // in the order of addresses
};

class BlockPools;
class SpanStore;

using PoolOfBlock = std::function<PoolIndex(const Block&)>;

// Called under the state lock with all threads stopped. `charged` returns the pool that counts a
// live block.
std::vector<SegmentDescription> describe_segments(const SpanStore& spans, const BlockPools& pools,
                                                  const PoolOfBlock& charged);

}  // namespace uvm
