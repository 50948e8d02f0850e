// Takes, cuts and puts back free blocks. Each memory kind, device and stream has two pools, one for
// each way to cut memory. Blocks of a packed pool follow one another in runs of pages; arenas of
// small objects take some of these blocks. This class does not depend on streams' work, the driver
// or budgets, and requests no memory: callers add pages.
//
// Guarded by the state lock. A taken block is in no index.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "allocator/heap/page_fit.hpp"
#include "allocator/heap/page_runs.hpp"
#include "allocator/heap/pool_table.hpp"
#include "allocator/heap/side_states.hpp"

namespace uvm {

class BlockPools {
 public:
  explicit BlockPools(std::uint64_t large_hits_required)
      : table_(runs_.directory().blocks(), large_hits_required) {}
  BlockPools(const BlockPools&) = delete;
  BlockPools& operator=(const BlockPools&) = delete;

  PoolTable& table() { return table_; }
  const PoolTable& table() const { return table_; }
  Pool& at(PoolIndex index) { return table_.at(index); }
  const Pool& at(PoolIndex index) const { return table_.at(index); }
  Pool& at(StreamIndex stream) { return table_.at(stream); }
  const Pool& at(StreamIndex stream) const { return table_.at(stream); }
  const std::vector<std::unique_ptr<Pool>>& all() const { return table_.all(); }
  PageDirectory& directory() { return runs_.directory(); }
  const PageDirectory& directory() const { return runs_.directory(); }
  SideStates& side_states() { return side_states_; }
  const SideStates& side_states() const { return side_states_; }

  // ---- blocks

  // Take the free block that fits best (FreeIndex::fit) without cutting it. Return nullptr if no
  // block is large enough. take_displaced_here() searches the blocks that are displaced to the
  // pool.
  PageBlock* take(Pool& pool, std::size_t size_bytes);
  PageBlock* take_displaced_here(Pool& pool, std::size_t size_bytes);
  // Takes these bytes out of one free packed block. Returns nullptr if no single packed block holds
  // all the bytes, if the block is displaced or has fences, or if a rest would be too small for a
  // block.
  PageBlock* take_at(char* address, std::size_t size_bytes);
  // Does what take() and trim() do, in one step, for the pool's own blocks.
  PageBlock* take_trimmed(Pool& pool, std::size_t size_bytes);
  // Takes a block of `size_bytes`, at an address that is a multiple of this size. The size must be
  // a power of two and at least kSmallestPacked. Packed pools only.
  PageBlock* take_aligned(Pool& pool, std::size_t size_bytes);

  // Cuts a taken block down to `size_bytes` and puts the rest into block->pool. Returns the cut
  // block, which may have another record. Fences stay with the rest, so the returned block must not
  // need the fences. After std::bad_alloc the whole block is free again.
  PageBlock* trim(PageBlock* block, std::size_t size_bytes);
  // Like trim(), but the returned block begins at a multiple of `alignment_bytes`, a power of two.
  // The taken block must be larger than `size_bytes` by `alignment_bytes` + kSmallestPacked.
  PageBlock* trim_aligned(PageBlock* block, std::size_t alignment_bytes, std::size_t size_bytes);

  // Makes a block free in `pool` and joins it with free neighbours of the same kind. Allocates
  // nothing: add_pages() or prepare_for_displaced() has made the tables of the pool's index.
  void put(PageBlock* block, Pool& pool) noexcept;
  // Must be called before blocks of other owning pools are put into the pool.
  void prepare_for_displaced(PoolIndex pool) { at(pool).displaced_here.prepare(); }
  // Takes a displaced free block out of the indexes of its pool and its owning pool.
  void take_displaced(PageBlock* block) { unlink(block); }
  // Returns the bytes in pages of the stream's pools that are not free.
  std::size_t bytes_in_use(StreamIndex stream) const;

  // ---- pages

  // Called when pages may soon run short. From then on page_conserving_offset() places packed
  // blocks of at least a page so that whole pages are free after such a block is freed. While pages
  // are plentiful, the gaps that this placement leaves in front of blocks would cost more than they
  // save.
  void conserve_pages() { conserves_pages_ = true; }

  // Turns pages that were just taken from their span into one block of `owning_pool` that is in no
  // index. On std::bad_alloc nothing has changed.
  PageBlock* add_pages(const PageRun& run, Pool& owning_pool);

  // Takes `size_bytes`, a number of whole pages, out of a free block of the pool. The result's base
  // is nullptr if no block holds the pages in one piece.
  PageRun take_pages(Pool& pool, std::size_t size_bytes);
  // Takes a free block that holds a whole page. Returns nullptr if no block does. cut_page() takes
  // the page out of that block and puts the rest back.
  PageBlock* take_with_page(Pool& pool);
  PageRun cut_page(PageBlock* block) { return cut_pages(block, kPageBytes, kPageBytes); }
  // Takes whole pages, at most `most_bytes`, out of a free block without fences. The result's base
  // is nullptr if the block holds no whole page.
  PageRun release_pages(PageBlock* block, std::size_t most_bytes);

  // Returns the free blocks of the pool that may hold whole pages, smallest first. Leaves out
  // blocks with fences unless `fenced_too`.
  std::vector<PageBlock*> with_pages(const Pool& pool, bool fenced_too) const;
  // Same as with_pages(), for the blocks that are displaced to the pool.
  std::vector<PageBlock*> displaced_with_pages(const Pool& pool, bool fenced_too) const;
  // Returns the bytes of the pages that lie wholly in the block.
  static std::size_t whole_page_bytes(const PageBlock& block);
  // Returns the bytes of whole pages in the free blocks of all pools.
  std::size_t free_page_bytes() const;
  // Return the bytes of the free block that ends, or begins, at a page boundary of a span and would
  // be joined with pages that are added to the pool at that boundary. Return 0 if there is no such
  // block.
  std::size_t free_bytes_before(const Pool& pool, const Span& span, const char* boundary) const;
  std::size_t free_bytes_after(const Pool& pool, const Span& span, const char* boundary) const;

  // Returns the bytes of memory that records and tables take.
  std::size_t metadata_bytes() const { return directory().bytes() + table_.bytes(); }

  // Logs a broken invariant and aborts. For tests and debug builds.
  void check_invariants(const std::vector<std::unique_ptr<Span>>& spans) const;

 private:
  static bool can_join(const PageBlock* left, const PageBlock* right);
  static std::size_t least_rest(const PageBlock& block, std::size_t size_bytes);
  void link(PageBlock* block, Pool& pool);
  void unlink(PageBlock* block);
  struct Cut {
    PageBlock* taken;
    PageBlock* rest;
  };
  Cut split_off_rest(PageBlock*& block, std::size_t size_bytes);
  PageBlock* split_off_head(PageBlock* block, std::size_t head_bytes);
  PageBlock* split_middle(PageBlock* block, std::size_t head_bytes, std::size_t size_bytes,
                          std::size_t least_tail_bytes);
  PageBlock* fit_aligned(const Pool& pool, std::size_t alignment_bytes,
                         std::size_t size_bytes) const;
  PageRun cut_pages(PageBlock* block, std::size_t least_bytes, std::size_t most_bytes);
  bool takes_new_pages(const Pool& pool, const Span& span, const char* address) const;

  bool conserves_pages_ = false;
  PageRuns runs_;
  SideStates side_states_;
  PoolTable table_;
};

// Blocks with fences are not joined, because the joined block would have to wait for all fences of
// both.
[[gnu::always_inline]] inline bool BlockPools::can_join(const PageBlock* left,
                                                        const PageBlock* right) {
  if (left == nullptr || right == nullptr || left->now() != BlockState::kFree ||
      right->now() != BlockState::kFree || !left->has_no_side_state || !right->has_no_side_state) {
    return false;
  }
  if (left->pool != right->pool || left->owning_pool != right->owning_pool) return false;
  return left->kind == BlockKind::kPacked ||
         (left->own_pages->span == right->own_pages->span &&
          left->own_pages->placement == right->own_pages->placement);
}

}  // namespace uvm
