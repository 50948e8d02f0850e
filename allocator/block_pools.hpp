// Free blocks and the segments they lie in: best fit, split, coalesce. Knows nothing of streams'
// order, of the driver or of budgets; it never asks for memory, it is given segments. One tree per
// pool, ordered by size and address, so the best fit is the smallest sufficient block at the lowest
// address.
//
// Guarded by the allocator's lock.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include <uvmalloc/allocator/block.hpp>
#include <uvmalloc/allocator/span_store.hpp>
#include <uvmalloc/storage/page_map.hpp>

namespace uvm {

class BlockPools {
 public:
  BlockPools() = default;
  ~BlockPools();
  BlockPools(const BlockPools&) = delete;
  BlockPools& operator=(const BlockPools&) = delete;

  // How a request is rounded: to 512 bytes in shared segments, to whole pages above kSmallBytes.
  static SizeClass class_of(std::size_t size_bytes) {
    return size_bytes <= kSmallBytes ? SizeClass::kSmall : SizeClass::kLarge;
  }
  static std::size_t rounded(std::size_t size_bytes) {
    return round_up(size_bytes,
                    class_of(size_bytes) == SizeClass::kSmall ? kSmallGranule : kPageBytes);
  }

  Pool& pool(const PoolKey& key);
  std::vector<Pool*> pools();

  // Takes the best fitting free block whole; nullptr where none fits. The block is in no tree then.
  Block* take(FreeTree& tree, std::size_t size_bytes);
  Block* take(AwayTree& tree, std::size_t size_bytes);

  // Cuts a taken block down to size and puts the rest among the free ones of `pool`. Fences stay
  // with the rest: the caller has seen to it that its own part needs none.
  void trim(Block* block, std::size_t size_bytes, Pool* pool);

  // Makes a segment over a run just taken from a span, and returns its one block, in no tree.
  Block* add_segment(Span* span, char* base, std::size_t size_bytes, Pool* home);

  // Puts a block among the free ones of `pool`, joined with free neighbours of the same kind.
  void put(Block* block, Pool* pool);

  // Removes every wholly free segment of the pool from it; `each` gets the run and is the last to
  // see it.
  void release_free_segments(Pool* pool, const std::function<void(const Segment&)>& each);

  // The block that holds `address`, and whether the address is its start; nullptr: not ours.
  Block* find(const void* address, bool* is_start) const;

  // Visits every block of every segment.
  void each_block(const std::function<void(const Block&)>& visit) const;

  // Aborts with a line that names what is broken. For tests and debug builds.
  void check_invariants() const;

 private:
  Block* join(Block* left, Block* right);
  bool can_join(const Block* left, const Block* right) const;
  void unlink(Block* block);
  Block* neighbour_before(const Block* block) const;
  Block* neighbour_after(const Block* block) const;
  Segment* new_segment(Span* span, Pool* home, char* base, std::size_t size_bytes);
  void drop_segment(Segment* segment);

  PageMap<Segment> pages_;
  std::map<PoolKey, std::unique_ptr<Pool>> pools_;
  std::map<char*, std::unique_ptr<Segment>> segments_;
};

}  // namespace uvm
