// Records of page blocks, named by numbers of four bytes. Each record fills a cache line. They lie
// in one piece of address space; only the records that were made take memory. Records are used
// again and never freed before the store.
//
// Threads that use streams of their own write to records all the time. Processors fetch cache lines
// in pairs, so records of different streams lie in different pairs: a stream gets records in groups
// that fill pairs, and keeps them. (With two streams' records in one pair, two threads were slower
// together than one alone.)
//
// Guarded by the state lock, except at(), which may run beside everything else.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "allocator/base/cache_lines.hpp"
#include "allocator/heap/block.hpp"

namespace uvm {

class PageBlockStore {
 public:
  // std::bad_alloc: the address space cannot be reserved.
  PageBlockStore();
  ~PageBlockStore();
  PageBlockStore(const PageBlockStore&) = delete;
  PageBlockStore& operator=(const PageBlockStore&) = delete;

  // A record for a block of that pool; its storage and neighbours are not set. Its number is `id`,
  // never 0. std::bad_alloc if there is no memory, or all numbers are taken.
  [[gnu::always_inline]] PageBlock* make(PoolIndex owning_pool) {
    std::uint32_t& free = free_of(owning_pool);
    if (free == 0) free = make_group();
    PageBlock* block = at(free);
    free = block->chain.next;
    block->owning_pool = owning_pool;
    block->has_no_side_state = true;
    block->exported = false;
    return block;
  }

  [[gnu::always_inline]] void drop(PageBlock* block) {
    block->set(BlockState::kFree);
    block->place_at(nullptr);
    std::uint32_t& free = free_of(block->owning_pool);
    block->chain.next = free;
    free = block->id;
  }

  // Record 0 is no block: the lowest key in its node is kNoBlock. It exists once any other does.
  PageBlock* at(std::uint32_t id) const { return records_ + id; }
  // nullptr for number 0.
  PageBlock* find(std::uint32_t id) const { return id == 0 ? nullptr : at(id); }

  std::size_t bytes() const {
    return round_up(made_ * sizeof(PageBlock), kChunk * sizeof(PageBlock));
  }

 private:
  static constexpr std::uint32_t kGroup = 16;
  static constexpr std::uint32_t kChunk = 1024;  // records that get memory together
  static_assert(kGroup * sizeof(PageBlock) % kCacheLinePair == 0 && kChunk % kGroup == 0 &&
                kBlockKeys % kChunk == 0 && std::is_trivially_destructible_v<PageBlock>);
  // If there are more streams, some share groups.
  static constexpr std::size_t kLists = 64;

  std::uint32_t& free_of(PoolIndex owning_pool) {
    return free_[owning_pool / kPoolsPerStream % kLists];
  }

  // Makes a group of records, each linked to the next. Returns the first one's number.
  std::uint32_t make_group();

  PageBlock* records_;
  std::uint32_t made_ = 0;
  std::array<std::uint32_t, kLists> free_{};  // linked by `next`
};

}  // namespace uvm
