// Records of run blocks, named by numbers of four bytes, so that tables of them are small. Records
// are used again and never freed before the store.
//
// Threads that use streams of their own write to records all the time, so records of different
// streams lie in different lines of the cache, and in different pairs of lines, which processors
// fetch together: a stream gets them in groups that fill such pairs, and keeps them. (Neighbours of
// two streams made two threads slower together than one alone.)
//
// Guarded by the allocator's lock, but for at(), which may run beside everything else.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <stdexcept>
#include <type_traits>

#include <uvmalloc/allocator/block.hpp>
#include <uvmalloc/allocator/cache_lines.hpp>

namespace uvm {

class RunBlockStore {
 public:
  RunBlockStore() : chunks_(new Chunks{}) {}
  ~RunBlockStore() {
    for (std::size_t chunk = 0; chunk * kChunk < made_; ++chunk) {
      ::operator delete((*chunks_)[chunk].load(), kAlignment);
    }
  }
  RunBlockStore(const RunBlockStore&) = delete;
  RunBlockStore& operator=(const RunBlockStore&) = delete;

  // A record for a block of that pool, which says of its storage and neighbours what it happens to;
  // its number is its `id`, never 0.
  RunBlock* make(PoolIndex home) {
    RunBlock*& free = free_of(home);
    if (free == nullptr) free = make_group();
    RunBlock* block = free;
    free = block->shared.next;
    block->home = home;
    block->plain = true;
    block->exported = false;
    return block;
  }

  void drop(RunBlock* block) {
    block->set(BlockState::kFree);
    block->place_at(nullptr);
    RunBlock*& free = free_of(block->home);
    block->shared.next = free;
    free = block;
  }

  RunBlock* at(std::uint32_t id) const {
    return (*chunks_)[id / kChunk].load(std::memory_order_acquire) + id % kChunk;
  }

  std::size_t bytes() const { return (made_ + kChunk - 1) / kChunk * kChunk * sizeof(RunBlock); }

 private:
  static constexpr std::size_t kChunk = 1024;
  static constexpr std::size_t kChunks = kBlockKeys / kChunk;
  using Chunks = std::array<std::atomic<RunBlock*>, kChunks>;
  static constexpr std::align_val_t kAlignment{kCacheLinePair};
  static constexpr std::uint32_t kGroup = 16;
  static_assert(kGroup * sizeof(RunBlock) % kCacheLinePair == 0 && kChunk % kGroup == 0 &&
                std::is_trivially_destructible_v<RunBlock>);
  // More streams than that share groups again.
  static constexpr std::size_t kLists = 64;

  RunBlock*& free_of(PoolIndex home) { return free_[home / kPoolsPerStream % kLists]; }

  // The first of new records, each linked to the next.
  RunBlock* make_group() {
    const std::size_t chunk = made_ / kChunk;
    if (chunk == kChunks) throw std::length_error("uvmalloc: too many blocks");
    std::atomic<RunBlock*>& records = (*chunks_)[chunk];
    if (records.load(std::memory_order_relaxed) == nullptr) {
      auto* made = static_cast<RunBlock*>(::operator new(kChunk * sizeof(RunBlock), kAlignment));
      std::uninitialized_default_construct_n(made, kChunk);
      records.store(made, std::memory_order_release);
    }
    RunBlock* next = nullptr;
    for (std::uint32_t id = made_ + kGroup; id-- > std::max(made_, 1u);) {
      RunBlock* block = at(id);
      block->id = id;
      block->shared.next = next;
      next = block;
    }
    made_ += kGroup;
    return next;
  }

  std::unique_ptr<Chunks> chunks_;
  std::uint32_t made_ = 0;
  std::array<RunBlock*, kLists> free_{};  // linked by `next`
};

}  // namespace uvm
