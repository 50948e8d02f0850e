// The pools that belong to graphs or to the program: which requests they serve, and their blocks.
// Thread-safe; takes the state lock itself. In a forked child begin(), retain() and restore() throw
// std::runtime_error, and the other functions do nothing.
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

  // Returns the innermost open scope that serves requests of the stream; its `pool` is 0 if no
  // scope does. Calls filters without the lock.
  PrivatePoolTable::Scope scope_of(int device, StreamHandle stream);

  // Opens a scope of the pool, makes the pool if needed, and adds a user. Returns the scope's
  // number. If `capturing`, no thread waits for a device until the scope ends. Throws
  // std::invalid_argument if `id` is 0 or the device does not exist.
  std::uint64_t begin(int device, std::uint64_t id, PrivatePoolTable::StreamFilter routed,
                      bool capturing);
  // Closes the scope with that number, or the innermost if the number is 0. Records deferred fences
  // and sends pending hints. Returns false if no such scope is open.
  bool end(int device, std::uint64_t id, std::uint64_t scope);
  // Removes a user; the last one closes open scopes. Returns false if the pool does not exist.
  bool release(int device, std::uint64_t id);
  // Adds a user; makes the pool if needed. Throws the same exceptions as begin().
  void retain(int device, std::uint64_t id);
  // Returns the number of users, or 0 if the pool does not exist.
  std::size_t users(int device, std::uint64_t id) const;
  // Gives each later block of the pool its own pages. Returns false if the pool does not exist.
  bool give_whole_pages(int device, std::uint64_t id);
  // Returns the pool's live blocks, by address. Stops all threads that allocate or free meanwhile.
  std::vector<PrivateBlock> blocks(int device, std::uint64_t id) const;
  // Makes exactly these blocks the live ones of the pool. Waits for all fences. Throws
  // std::invalid_argument, after it has changed some blocks, if a block is not free at its address.
  // Throws std::logic_error if a stream is being captured.
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
