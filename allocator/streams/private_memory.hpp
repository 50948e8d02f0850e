// Pools that belong to graphs or to the program: which requests they serve, and their blocks.
// Thread-safe; takes the state lock itself. In a forked child begin(), retain() and restore() throw
// std::runtime_error, and the others do nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <uvmalloc/types.hpp>
#include "allocator/state/block_counts.hpp"
#include "allocator/state/block_returner.hpp"
#include "allocator/state/hint_dispatcher.hpp"
#include "allocator/streams/fenced_blocks.hpp"
#include "allocator/streams/stream_pools.hpp"

namespace uvm {

class PrivateMemory {
 public:
  PrivateMemory(Machine& machine, HeapState& state, ThreadCaches& caches, FencedBlocks& fenced,
                BlockReturner& returner, BlockCounts& counts, HintDispatcher& hints,
                StreamPools& stream_pools, ReturnsBlocks& returns)
      : machine_(machine),
        state_(state),
        caches_(caches),
        fenced_(fenced),
        returner_(returner),
        counts_(counts),
        hints_(hints),
        stream_pools_(stream_pools),
        returns_(returns) {}
  PrivateMemory(const PrivateMemory&) = delete;
  PrivateMemory& operator=(const PrivateMemory&) = delete;

  // The innermost open scope for requests of the stream; its `pool` is 0 if there is none. Calls
  // filters without the lock.
  PrivatePoolTable::Scope scope_of(int device, StreamHandle stream);

  // Opens a scope of the pool, makes the pool if needed, and adds a user. Returns the scope's
  // number. `capturing`: until its end nothing is waited for. std::invalid_argument: `id` is 0, or
  // no such device.
  std::uint64_t begin(int device, std::uint64_t id, PrivatePoolTable::StreamFilter routed,
                      bool capturing);
  // Closes that scope; 0: the innermost. Records deferred fences and sends pending hints. False: no
  // such scope.
  bool end(int device, std::uint64_t id, std::uint64_t scope);
  // Removes a user; the last one closes open scopes. False: there is no such pool.
  bool release(int device, std::uint64_t id);
  // Adds a user; makes the pool if needed. Throws as begin().
  void retain(int device, std::uint64_t id);
  // The number of users; 0: there is no such pool.
  std::size_t users(int device, std::uint64_t id) const;
  // Each later block of the pool gets pages of its own. False: there is no such pool.
  bool give_whole_pages(int device, std::uint64_t id);
  // The pool's live blocks, by address. Stops the world.
  std::vector<PrivateBlock> blocks(int device, std::uint64_t id) const;
  // Makes exactly these blocks the pool's live ones. Waits for all fences. std::invalid_argument,
  // with some blocks done: a block is not free at its address. std::logic_error: a stream is
  // captured.
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
  StreamPools& stream_pools_;
  ReturnsBlocks& returns_;
};

}  // namespace uvm
