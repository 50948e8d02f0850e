// Owns the records of page blocks, which are identified by IDs of four bytes. Each record fills a
// cache line. All records are in one range of address space, and take memory only after they are
// made. Records are reused, and freed only together with the store.
//
// Threads write to the records of their streams all the time. Processors fetch cache lines in
// pairs, so records of different streams must be in different pairs. A stream therefore gets
// records in groups that fill pairs, and keeps these records. (With two streams' records in one
// pair, two threads together were slower than one.)
//
// Guarded by the state lock, except at(), which may run at any time.
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
  // Throws std::bad_alloc if the address space cannot be reserved.
  PageBlockStore();
  ~PageBlockStore();
  PageBlockStore(const PageBlockStore&) = delete;
  PageBlockStore& operator=(const PageBlockStore&) = delete;

  // Returns a record for a block of the pool, without storage and neighbours. The record's `id` is
  // never 0. Throws std::bad_alloc if there is no memory, or if all IDs are taken.
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

  // Record 0, made together with record 1, is not a block. It represents an empty tree: its lowest
  // key is kNoBlock.
  PageBlock* at(std::uint32_t id) const { return records_ + id; }
  PageBlock* find(std::uint32_t id) const { return id == 0 ? nullptr : at(id); }

  std::size_t bytes() const {
    return round_up(made_ * sizeof(PageBlock), kChunk * sizeof(PageBlock));
  }

 private:
  static constexpr std::uint32_t kGroup = 16;
  static constexpr std::uint32_t kChunk = 1024;  // this many records get memory together
  static_assert(kGroup * sizeof(PageBlock) % kCacheLinePair == 0 && kChunk % kGroup == 0 &&
                kBlockKeys % kChunk == 0 && std::is_trivially_destructible_v<PageBlock>);
  // If there are more streams than lists, some streams share groups.
  static constexpr std::size_t kLists = 64;

  std::uint32_t& free_of(PoolIndex owning_pool) {
    return free_[position(stream_of(owning_pool)) % kLists];
  }

  // Makes a group of records, each linked to the next. Returns the ID of the first record.
  std::uint32_t make_group();

  PageBlock* records_;
  std::uint32_t made_ = 0;
  std::array<std::uint32_t, kLists> free_{};  // first free records, linked by chain.next
};

}  // namespace uvm
