// Free blocks and the pages they lie in: fit, split, coalesce. Knows nothing of streams'
// order, of the driver or of budgets; it never asks for memory, it is given pages. Each facade,
// device and stream has two pools, by how memory is cut there: shared and whole.
//
// A shared pool holds runs of whole pages, in which blocks lie one after another. Pages given to it
// beside a run of its own extend that run: free blocks at its ends grow by what is missing. Arenas
// of small objects take parts of such runs. Whole blocks have their pages for themselves.
//
// Guarded by the allocator's lock, but for block_at(): it may run beside everything else, on the
// start of a live block. Page records are used again and never freed before the pools, so a reader
// of a stale address reads a record, if the wrong one.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include <uvmalloc/allocator/base/recycled.hpp>
#include <uvmalloc/allocator/base/work_counters.hpp>
#include <uvmalloc/allocator/heap/block.hpp>
#include <uvmalloc/allocator/heap/free_index.hpp>
#include <uvmalloc/allocator/heap/free_tree.hpp>
#include <uvmalloc/allocator/heap/page_fit.hpp>
#include <uvmalloc/allocator/heap/run_block_store.hpp>
#include <uvmalloc/allocator/heap/small_page.hpp>
#include <uvmalloc/allocator/heap/start_table.hpp>
#include <uvmalloc/allocator/heap/stream_key.hpp>
#include <uvmalloc/allocator/spans/span_store.hpp>
#include <uvmalloc/storage/page_map.hpp>

namespace uvm {

// How memory is cut; also a pool's place among its stream's.
enum class PoolClass : std::uint8_t { kShared, kWhole };

// Whole blocks by size and address where the index inside the blocks is taken.
struct SmallestThenLowest {
  using is_transparent = void;
  bool operator()(const RunBlock* left, const RunBlock* right) const {
    return FreeTree::is_before(left, right);
  }
  bool operator()(const RunBlock* block, std::size_t size_bytes) const {
    return block->size_bytes() < size_bytes;
  }
};

struct Pool {
  Pool(const RunBlockStore& blocks, std::uint64_t requests_before_keeping)
      : own(blocks), met_before_keeping(requests_before_keeping), guests(blocks) {}

  PoolIndex index = 0;
  StreamKey key;
  PoolClass pool_class = PoolClass::kShared;
  std::size_t run_bytes = 0;  // of all run blocks whose home this is, wherever they are
  FreeIndex own;              // the free ones of those
  // Of the stream's first pool: nobody can name the stream, whose work is over, until it is asked
  // for again: the handle is then another stream's.
  bool stream_is_over = false;
  // Of the stream's first pool: nobody can name the stream any more, and the next one that is new
  // takes the pools over. `last_work`: of a stream that is gone; else a thread's own, which ended.
  bool is_orphaned = false;
  std::optional<Fence> last_work;
  // Requests for large blocks met from here since such blocks, kept by threads, stood in the way,
  // and after how many of them threads keep some: each time that they stood in the way eight times
  // as many.
  std::uint64_t met = 0;
  std::uint64_t met_before_keeping;
  bool keeps_large() const { return met >= met_before_keeping; }
  void keep_no_large() {
    met = 0;
    met_before_keeping =
        std::min(met_before_keeping * policy::kLargeBackOff, policy::kMostLargeHitsRequired);
  }
  // Whole blocks only.
  FreeIndex guests;  // whose pages are here, though they were made for another facade
  std::set<RunBlock*, SmallestThenLowest> away;  // whose home this is, guests of other pools
};

// Two MiB of a shared pool.
struct SharedPage {
  PoolIndex home = 0;
  std::uint32_t covering = 0;  // a block that was found to reach into it from an earlier page
  Span* span = nullptr;
  SegmentPlacement placement;
};

class BlockPools {
 public:
  // `requests_before_keeping`: the first Pool::met_before_keeping.
  explicit BlockPools(std::uint64_t requests_before_keeping)
      : requests_before_keeping_(requests_before_keeping) {}
  ~BlockPools();
  BlockPools(const BlockPools&) = delete;
  BlockPools& operator=(const BlockPools&) = delete;

  static constexpr std::size_t kSmallestShared = uvm::kSmallestShared;

  static PoolClass class_of(Facade facade, std::size_t size_bytes) {
    return has_whole_pages(facade, size_bytes) ? PoolClass::kWhole : PoolClass::kShared;
  }

  // The first of the two pools of that facade, device and stream; made where there are none yet.
  PoolIndex pools_of(const StreamKey& key);
  bool has_pools_of(const StreamKey& key) const;
  // Makes the two pools those of another stream, which has none, with all that they hold. This and
  // forget() take no memory.
  void rename(PoolIndex first, const StreamKey& key);
  // The next pools_of() makes others; these keep what they hold, of a stream that nobody can name:
  // `gone` is its DeviceStream::thread. Their first; nullopt: there are none.
  std::optional<PoolIndex> forget(const StreamKey& key, std::uint64_t gone);
  Pool& at(PoolIndex index) { return *pools_[index]; }
  const Pool& at(PoolIndex index) const { return *pools_[index]; }
  const std::vector<std::unique_ptr<Pool>>& pools() const { return pools_; }

  // Takes the free block that fits (FreeIndex::fit) whole; nullptr where none is as large. It is in
  // no index then.
  RunBlock* take(Pool& pool, std::size_t size_bytes);
  RunBlock* take_guest(Pool& pool, std::size_t size_bytes);
  RunBlock* take_away(Pool& home, std::size_t size_bytes);
  // Takes these bytes out of the free block at home that holds them all; nullptr where none does or
  // what is left beside them would be no block.
  RunBlock* take_at(char* address, std::size_t size_bytes);

  // Pages may run short: from now on shared blocks of a page and more are cut out of free ones
  // where they take the fewest whole pages and cut the fewest in two, so that they leave whole
  // pages when they are freed. Not before: with pages to spare, the gaps in front of them cost
  // more.
  void spare_pages() { spares_pages_ = true; }

  // Cuts a taken block down to size and puts the rest among the free ones of block->pool. Returns
  // the block of that size, which may have another record. Fences stay with the rest: the caller
  // has seen to it that its own part needs none. Where there is no memory for the record of the
  // rest (std::bad_alloc), all of the block is free again.
  RunBlock* trim(RunBlock* block, std::size_t size_bytes);
  // The same for what begins at a multiple of `alignment_bytes`, a power of two: the block has that
  // and kSmallestShared to spare.
  RunBlock* trim_aligned(RunBlock* block, std::size_t alignment_bytes, std::size_t size_bytes);

  // take() and trim() at once, of the pool's own blocks.
  RunBlock* take_trimmed(Pool& pool, std::size_t size_bytes);
  // So many bytes, a power of two from kSmallestShared up, at a multiple of that, of a shared pool.
  RunBlock* take_aligned(Pool& pool, std::size_t size_bytes);

  // Makes whole pages, just taken from a span, one block of `home`, in no index. std::bad_alloc:
  // nothing has changed.
  RunBlock* add_pages(Span* span, char* base, std::size_t size_bytes, Pool& home,
                      const SegmentPlacement& placement);

  // Puts a block among the free ones of `pool`, joined with free neighbours of the same kind. Needs
  // no memory: the pool's index has its tables from add_pages() or prepare_guests() on.
  void put(RunBlock* block, Pool& pool) noexcept;
  // The pool may get blocks of other pools.
  void prepare_guests(PoolIndex pool) { at(pool).guests.prepare(); }
  // Gives back the tables of a pool that has no pages any more.
  static void drop_empty_tables(Pool& pool) {
    if (pool.run_bytes == 0) pool.own.drop_empty_tables();
  }

  // A run of whole pages that no block uses any more.
  struct Pages {
    Span* span = nullptr;
    char* base = nullptr;
    std::size_t size_bytes = 0;
    SegmentPlacement placement;
  };

  // Takes `size_bytes`, whole pages, out of a free block of the pool; base is nullptr where none
  // has them in one piece.
  Pages take_pages(Pool& pool, std::size_t size_bytes);
  // Takes a free block that holds a whole page; nullptr where none does. cut_page() takes the page
  // out of it and puts the rest back.
  RunBlock* take_with_page(Pool& pool);
  Pages cut_page(RunBlock* block) { return cut_pages(block, kPageBytes, kPageBytes); }
  // The free blocks of the pool that may hold whole pages, smallest first; those with fences only
  // where they are wanted.
  std::vector<RunBlock*> with_pages(const Pool& pool, bool fenced_too) const;
  // Of the pages that the block reaches into, those that it covers.
  static std::size_t whole_page_bytes(const RunBlock& block);
  // Of all pools, whole pages in free blocks.
  std::size_t free_page_bytes() const;
  // Of a stream's pools, by the first: run blocks that are not free there.
  std::size_t bytes_in_use(PoolIndex first) const;
  // Takes whole pages, at most about `most_bytes`, out of one of them, whose fences are gone; base
  // is nullptr where it holds none.
  Pages release_pages(RunBlock* block, std::size_t most_bytes);
  std::vector<RunBlock*> fenced_guests(const Pool& pool) const;
  // Of one that was among them earlier: its record may be another block's by now, or none's.
  static bool is_fenced_guest(const RunBlock* guest);
  void take_guest(RunBlock* guest) { unlink(guest); }
  // Of the free block that ends, or begins, at a page boundary of a span and would be joined with
  // pages given to the pool there: its bytes. 0: there is none.
  std::size_t free_bytes_before(const Pool& pool, const Span& span, const char* boundary) const;
  std::size_t free_bytes_after(const Pool& pool, const Span& span, const char* boundary) const;

  // What an arena cuts into small objects: a taken shared block that ends in the page in which it
  // begins. It is in no index before, meanwhile, when nobody finds it, and after. std::bad_alloc:
  // it is as before.
  void begin_small_run(RunBlock* run);
  RunBlock* end_small_run(char* base);
  // The record of a small object that the arena just gave, and its end.
  Block* add_small(char* address, std::size_t size_bytes);
  void remove_small(Block* block);

  // The block that starts at `address`; nullptr: none does. Of what an arena has, where no object
  // starts, that as a whole. The only call without the lock.
  Block* block_at(const void* address) const;
  // The block that holds `address`; nullptr: not ours, or in no block.
  Block* find(const void* address) const;

  // Whether the address lies in pages of a pool.
  bool is_ours(const void* address) const { return page_at(address) != nullptr; }

  Span* span_of(const Block& block) const;
  SegmentPlacement* placement_of(const Block& block) const;
  // Where it is at home: the pool whose pages it lies in.
  PoolIndex home_of(const Block& block) const;

  // What few blocks have; nullptr: this one has none. Blocks that have some are not plain.
  BlockExtras* extras(const Block* block);
  const BlockExtras* extras(const Block* block) const;
  BlockExtras& make_extras(Block* block);
  void drop_extras(const Block* block) { extras_.erase(block); }
  void each_extras(const std::function<void(BlockExtras&)>& visit);

  // Visits every block of a span by address; what an arena has is visited as its small objects, and
  // free bytes there are in no block. Before its objects, of which there may be none, the other
  // visitor is told of it.
  void each_block(const Span& span, const std::function<void(const Block&)>& visit,
                  const std::function<void(const RunBlock& run)>& visit_small_run = {}) const;

  // Bytes of records and tables of pages, blocks and the map, as asked from the system.
  std::size_t metadata_bytes() const;

  // Aborts with a line that names what is broken. For tests and debug builds.
  void check_invariants(const std::vector<std::unique_ptr<Span>>& spans) const;

 private:
  // What a page belongs to: a pointer whose low bits tell its kind.
  struct Page;
  // What the page map holds of a page; both may be read beside changes.
  struct alignas(16) PageEntry {
    std::atomic<Page*> page = nullptr;  // nullptr: not ours
    StartTable starts;                  // in a shared page, of blocks
  };
  // kMixed: a shared page of which arenas have parts; the record is that of the small objects.
  enum class PageKind : std::uintptr_t { kWhole = 0, kShared = 1, kMixed = 2 };
  static constexpr std::uintptr_t kKindMask = 3;

  static Page* tagged(void* record, PageKind kind) {
    return reinterpret_cast<Page*>(address_of(record) | static_cast<std::uintptr_t>(kind));
  }
  static PageKind kind_of(const Page* page) {
    return static_cast<PageKind>(address_of(page) & kKindMask);
  }
  template <class T>
  static T* record_of(const Page* page) {
    return reinterpret_cast<T*>(address_of(page) & ~kKindMask);
  }

  Page* page_at(const void* address) const {
    const PageEntry* entry = pages_.find(address);
    return entry == nullptr ? nullptr : entry->page.load(std::memory_order_acquire);
  }
  // set_pages() then needs no memory.
  void prepare_pages(const void* address, std::size_t size_bytes) {
    pages_.each(address, size_bytes, [](PageEntry&) {});
  }
  void set_pages(const void* address, std::size_t size_bytes, Page* page) {
    pages_.each(address, size_bytes,
                [&](PageEntry& entry) { entry.page.store(page, std::memory_order_release); });
  }
  SharedPage* shared_page(const void* address) const;
  SmallPage& small_page(const void* address) const;
  RunBlock* run_at(const void* address) const;
  RunBlock* run_with(const void* address) const;
  // Of a block's number, in which step of its page it starts.
  struct StepOfBlock {
    const RunBlockStore& blocks;
    std::size_t operator()(std::uint32_t id) const {
      return StartTable::step_of(blocks.at(id)->address());
    }
  };
  inline void add_start(const RunBlock& block);
  inline void remove_start(const RunBlock& block);
  RunBlock* last_start(const StartTable& starts, std::size_t step) const;
  RunBlock* reaching_into(SharedPage* shared, const char* page, const void* address) const;
  RunBlock* fit_aligned(const Pool& pool, std::size_t alignment_bytes,
                        std::size_t size_bytes) const;
  RunBlock* without_head(RunBlock* block, std::size_t head_bytes);
  bool takes_new_pages(const Pool& pool, const Span& span, const char* address) const;
  inline bool can_join(const RunBlock* left, const RunBlock* right) const;
  inline void absorb(RunBlock* left, RunBlock* right);
  RunBlock* join_whole(RunBlock* left, RunBlock* right);
  inline void link(RunBlock* block, Pool& pool);
  void unlink(RunBlock* block);
  struct Cut {
    RunBlock* taken;
    RunBlock* rest;
  };
  static inline std::size_t least_rest(const RunBlock& block, std::size_t size_bytes);
  inline Cut cut(RunBlock*& block, std::size_t size_bytes);
  inline std::pair<RunBlock*, RunBlock*> split(RunBlock* block, std::size_t size_bytes);
  RunBlock* carve(RunBlock* block, std::size_t head_bytes, std::size_t size_bytes,
                  std::size_t least_tail_bytes);
  Pages cut_pages(RunBlock* block, std::size_t least_bytes, std::size_t most_bytes);
  RunBlock* neighbour_before(const RunBlock* block) const;
  RunBlock* neighbour_after(const RunBlock* block) const;
  inline RunBlock* new_block(BlockKind kind, char* address, std::size_t size_bytes, PoolIndex home);
  RunBlock* new_whole_block(char* address, std::size_t size_bytes, PoolIndex home,
                            const OwnPages& pages);
  Pages drop_pages(RunBlock* block);

  RunBlock* previous_of(const RunBlock* block) const {
    return blocks_.find(block->shared.previous);
  }
  RunBlock* next_of(const RunBlock* block) const { return blocks_.find(block->shared.next); }

  const std::uint64_t requests_before_keeping_;
  bool spares_pages_ = false;
  PageMap<PageEntry> pages_;
  RunBlockStore blocks_;
  SmallPageStore small_pages_;
  std::vector<std::unique_ptr<Pool>> pools_;
  std::map<StreamKey, PoolIndex> streams_;
  Recycled<OwnPages> own_pages_;
  Recycled<SharedPage> shared_pages_;
  std::size_t start_table_bytes_ = 0;
  std::unordered_map<const Block*, BlockExtras> extras_;
};

// A fence belongs to a place in time as much as a block to one in memory: blocks with fences are
// joined with none.
[[gnu::always_inline]] inline bool BlockPools::can_join(const RunBlock* left,
                                                        const RunBlock* right) const {
  if (left == nullptr || right == nullptr || left->now() != BlockState::kFree ||
      right->now() != BlockState::kFree || !left->plain || !right->plain) {
    return false;
  }
  if (left->pool != right->pool || left->home != right->home) return false;
  return left->kind == BlockKind::kShared || (left->whole->span == right->whole->span &&
                                              left->whole->placement == right->whole->placement);
}

inline Block* BlockPools::block_at(const void* address) const {
  count_work(&WorkCounters::look_ups);
  const PageEntry* entry = pages_.find(address);
  if (entry == nullptr) return nullptr;
  Page* page = entry->page.load(std::memory_order_acquire);
  if (page == nullptr) return nullptr;
  Block* block = nullptr;
  switch (kind_of(page)) {
    case PageKind::kWhole:
      block = record_of<RunBlock>(page);
      break;
    case PageKind::kMixed:
      if (Block* object = record_of<SmallPage>(page)->at(address)) return object;
      [[fallthrough]];
    case PageKind::kShared: {
      std::uint32_t id = entry->starts.at(StartTable::step_of(address));
      if (id == 0) return nullptr;
      block = blocks_.at(id);
      break;
    }
  }
  return block->address() == address ? block : nullptr;
}

}  // namespace uvm
