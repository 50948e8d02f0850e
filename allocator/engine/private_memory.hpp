// Pools that belong to graphs or to the program: which requests go there, and their blocks. The
// functions are CachingManagedAllocator's, and are described there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include <uvmalloc/types.hpp>
#include "allocator/engine/block_counts.hpp"
#include "allocator/engine/block_returner.hpp"
#include "allocator/engine/fenced_blocks.hpp"
#include "allocator/engine/hint_dispatcher.hpp"

namespace uvm {

class PrivateMemory {
 public:
  // `free` gives a block back as its owner would.
  PrivateMemory(Machine& machine, HeapState& state, ThreadCaches& caches, FencedBlocks& fenced,
                BlockReturner& returner, BlockCounts& counts, HintDispatcher& hints,
                std::function<void(void*)> free)
      : machine_(machine),
        state_(state),
        caches_(caches),
        fenced_(fenced),
        returner_(returner),
        counts_(counts),
        hints_(hints),
        free_(std::move(free)) {}
  PrivateMemory(const PrivateMemory&) = delete;
  PrivateMemory& operator=(const PrivateMemory&) = delete;

  // The innermost open scope that requests of the stream belong to; its `pool` is 0 if there is
  // none.
  PrivatePools::Scope scope_of(int device, StreamHandle stream);

  std::uint64_t begin(int device, std::uint64_t id, PrivatePools::StreamFilter routed,
                      bool capturing);
  bool end(int device, std::uint64_t id, std::uint64_t scope);
  bool release(int device, std::uint64_t id);
  void retain(int device, std::uint64_t id);
  std::size_t users(int device, std::uint64_t id) const;
  bool give_whole_pages(int device, std::uint64_t id);
  std::vector<PrivateBlock> blocks(int device, std::uint64_t id) const;
  void restore(int device, std::uint64_t id, const std::vector<PrivateBlock>& blocks);

 private:
  void restore_block(int device, std::uint64_t id, const PrivateBlock& wanted);

  Machine& machine_;
  HeapState& state_;
  ThreadCaches& caches_;
  FencedBlocks& fenced_;
  BlockReturner& returner_;
  BlockCounts& counts_;
  HintDispatcher& hints_;
  const std::function<void(void*)> free_;
};

}  // namespace uvm
