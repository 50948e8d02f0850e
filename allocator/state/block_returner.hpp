// Gives freed blocks back: packed and page-granular blocks to their pool, small objects to their
// arena. Also empties thread caches. Thread-safe; called without the state lock.
#pragma once

#include <utility>

#include "allocator/cache/thread_caches.hpp"
#include "allocator/heap/block_chain.hpp"
#include "allocator/small/small_arenas.hpp"
#include "allocator/state/heap_state.hpp"

namespace uvm {

class BlockReturner {
 public:
  BlockReturner(HeapState& state, ThreadCaches& caches, SmallArenas& arenas)
      : state_(state), caches_(caches), arenas_(arenas) {}
  BlockReturner(const BlockReturner&) = delete;
  BlockReturner& operator=(const BlockReturner&) = delete;

  // Gives back blocks that have no pending fences.
  void give_back(BlockChain blocks) noexcept;
  // Gives back a block without fences. If the block is a small object and its bin in the thread's
  // cache is full, also gives back a part of the bin.
  void give_back_plain(Block* block) noexcept;

  // Gives back the cached blocks of a stream from all threads. Returns false if there were no such
  // blocks. Sets `*any_large` to whether large blocks were among them.
  bool flush(StreamIndex pools, CachedKind kind, bool* any_large);
  // Gives back all blocks in thread caches.
  void flush_all();

  // Gives back its `blocks` at the end of its scope. Make it before locks are taken.
  class Later {
   public:
    explicit Later(BlockReturner& owner) : owner_(owner) {}
    ~Later() { now(); }
    Later(const Later&) = delete;
    Later& operator=(const Later&) = delete;
    void now() {
      if (!blocks.empty()) owner_.give_back(std::move(blocks));
    }
    BlockChain blocks;

   private:
    BlockReturner& owner_;
  };

 private:
  void give_back_small(BlockChain blocks) noexcept;

  HeapState& state_;
  ThreadCaches& caches_;
  SmallArenas& arenas_;
};

}  // namespace uvm
