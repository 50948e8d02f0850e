// Free blocks: taking, cutting, putting back. Each facade, device and stream has two pools, by how
// memory is cut there. Blocks of a packed pool lie one after another in runs of pages; arenas of
// small objects take parts of them. Page-granular blocks have their pages for themselves.
//
// A block may be free in another pool than its home, which owns its pages: it is displaced then.
// Knows no order of streams, no driver and no budgets. Requests no memory: callers add pages.
//
// Guarded by the state lock. A block that was taken is in no index.
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
  // `large_hits_required`: the first Pool::large_hits_required.
  explicit BlockPools(std::uint64_t large_hits_required)
      : table_(runs_.directory().blocks(), large_hits_required) {}
  BlockPools(const BlockPools&) = delete;
  BlockPools& operator=(const BlockPools&) = delete;

  PoolTable& table() { return table_; }
  Pool& at(PoolIndex index) { return table_.at(index); }
  const Pool& at(PoolIndex index) const { return table_.at(index); }
  const std::vector<std::unique_ptr<Pool>>& all() const { return table_.all(); }
  PageDirectory& directory() { return runs_.directory(); }
  const PageDirectory& directory() const { return runs_.directory(); }
  SideStates& side_states() { return side_states_; }
  const SideStates& side_states() const { return side_states_; }

  // ---- blocks

  // Takes the free block that fits (FreeIndex::fit), uncut; nullptr: none is as large. The second
  // searches blocks displaced to the pool.
  RunBlock* take(Pool& pool, std::size_t size_bytes);
  RunBlock* take_displaced_here(Pool& pool, std::size_t size_bytes);
  // Takes these bytes out of the free block that holds them all, which is not displaced; nullptr:
  // there is none, or a rest beside them would be too small for a block.
  RunBlock* take_at(char* address, std::size_t size_bytes);
  // take() and trim() at once, of the pool's own blocks.
  RunBlock* take_trimmed(Pool& pool, std::size_t size_bytes);
  // Takes a power of two of bytes, from kSmallestPacked up, at a multiple of that, of a packed
  // pool.
  RunBlock* take_aligned(Pool& pool, std::size_t size_bytes);

  // Cuts a taken block down to size and puts the rest among the free ones of block->pool. Returns
  // the block of that size, which may have another record. Fences stay with the rest; the part that
  // is returned must need none. std::bad_alloc: all of the block is free again.
  RunBlock* trim(RunBlock* block, std::size_t size_bytes);
  // The same for a part that begins at a multiple of `alignment_bytes`, a power of two. The block
  // is larger by that and kSmallestPacked.
  RunBlock* trim_aligned(RunBlock* block, std::size_t alignment_bytes, std::size_t size_bytes);

  // Puts a block among the free ones of `pool`, joined with free neighbours of the same kind.
  // Allocates nothing: add_pages() or prepare_for_displaced() has made the tables of the pool's
  // index.
  void put(RunBlock* block, Pool& pool) noexcept;
  // Before blocks of other pools are put into the pool.
  void prepare_for_displaced(PoolIndex pool) { at(pool).displaced_here.prepare(); }
  // A block that is free in another pool than its home leaves the indexes of both.
  void take_displaced(RunBlock* block) { unlink(block); }
  // Bytes of a stream's pools, by the first, in blocks that are not free there.
  std::size_t bytes_in_use(PoolIndex first) const;

  // ---- pages

  // Pages may run short. From now on packed blocks of a page and more are placed by
  // page_conserving_offset(), so that they leave whole pages when they are freed. While there are
  // pages to spare, the gaps in front of such blocks cost more.
  void conserve_pages() { conserves_pages_ = true; }

  // Makes pages, just taken from their span, one block of `home`. std::bad_alloc: nothing has
  // changed.
  RunBlock* add_pages(const PageRun& run, Pool& home);

  // Takes `size_bytes`, whole pages, out of a free block of the pool; base is nullptr if no block
  // has them in one piece.
  PageRun take_pages(Pool& pool, std::size_t size_bytes);
  // Takes a free block that holds a whole page; nullptr: none does. cut_page() takes the page out
  // of it and puts the rest back.
  RunBlock* take_with_page(Pool& pool);
  PageRun cut_page(RunBlock* block) { return cut_pages(block, kPageBytes, kPageBytes); }
  // Takes whole pages, at most `most_bytes`, out of a free block without fences; base is nullptr if
  // it holds none.
  PageRun release_pages(RunBlock* block, std::size_t most_bytes);

  // The free blocks of the pool that may hold whole pages, smallest first; those with fences only
  // if `fenced_too`.
  std::vector<RunBlock*> with_pages(const Pool& pool, bool fenced_too) const;
  // Of those, the blocks of other pools that are displaced to this one.
  std::vector<RunBlock*> displaced_with_pages(const Pool& pool, bool fenced_too) const;
  // Bytes of the pages that the block covers.
  static std::size_t whole_page_bytes(const RunBlock& block);
  // Bytes of whole pages in the free blocks of all pools.
  std::size_t free_page_bytes() const;
  // Bytes of the free block that ends, or begins, at a page boundary of a span and would be joined
  // with pages added to the pool there. 0: there is none.
  std::size_t free_bytes_before(const Pool& pool, const Span& span, const char* boundary) const;
  std::size_t free_bytes_after(const Pool& pool, const Span& span, const char* boundary) const;

  // Bytes of records and tables, as taken from the system.
  std::size_t metadata_bytes() const { return directory().bytes() + table_.bytes(); }

  // Aborts with a line that names what is broken. For tests and debug builds.
  void check_invariants(const std::vector<std::unique_ptr<Span>>& spans) const;

 private:
  static bool can_join(const RunBlock* left, const RunBlock* right);
  static std::size_t least_rest(const RunBlock& block, std::size_t size_bytes);
  void link(RunBlock* block, Pool& pool);
  void unlink(RunBlock* block);
  struct Cut {
    RunBlock* taken;
    RunBlock* rest;
  };
  Cut split_off_rest(RunBlock*& block, std::size_t size_bytes);
  RunBlock* split_off_head(RunBlock* block, std::size_t head_bytes);
  RunBlock* split_middle(RunBlock* block, std::size_t head_bytes, std::size_t size_bytes,
                         std::size_t least_tail_bytes);
  RunBlock* fit_aligned(const Pool& pool, std::size_t alignment_bytes,
                        std::size_t size_bytes) const;
  PageRun cut_pages(RunBlock* block, std::size_t least_bytes, std::size_t most_bytes);
  bool takes_new_pages(const Pool& pool, const Span& span, const char* address) const;

  bool conserves_pages_ = false;
  PageRuns runs_;
  SideStates side_states_;
  PoolTable table_;
};

// Blocks with fences are not joined: the joined block would have to wait for both.
[[gnu::always_inline]] inline bool BlockPools::can_join(const RunBlock* left,
                                                        const RunBlock* right) {
  if (left == nullptr || right == nullptr || left->now() != BlockState::kFree ||
      right->now() != BlockState::kFree || !left->plain || !right->plain) {
    return false;
  }
  if (left->pool != right->pool || left->home != right->home) return false;
  return left->kind == BlockKind::kPacked ||
         (left->own_pages->span == right->own_pages->span &&
          left->own_pages->placement == right->own_pages->placement);
}

}  // namespace uvm
