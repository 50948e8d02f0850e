// Finds the 2 MiB page of an address, and the block at an address. Owns the records of pages and of
// blocks. Records are reused, and freed only together with the directory.
//
// A page either belongs to one page-granular block or is packed. A packed page has a map of the
// blocks that start in the page; arenas may hold some of these blocks.
//
// Guarded by the state lock, except block_at() and is_ours(). is_ours() may run at any time.
// block_at() may run at any time with the start of a live block. Given a stale address, block_at()
// reads some record and rejects that record if its address differs.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "allocator/base/object_pool.hpp"
#include "allocator/base/work_counters.hpp"
#include "allocator/heap/block.hpp"
#include "allocator/heap/block_start_map.hpp"
#include "allocator/heap/page_block_store.hpp"
#include "allocator/heap/small_page.hpp"
#include "allocator/spans/span_store.hpp"
#include "storage/page_map.hpp"

namespace uvm {

// A page of a packed pool.
struct PackedPage {
  PoolIndex owning_pool = 0;
  std::uint32_t covering = 0;  // the last found block that starts in an earlier page
  Span* span = nullptr;
  SegmentPlacement placement;
};

class PageDirectory {
 public:
  PageDirectory() = default;
  PageDirectory(const PageDirectory&) = delete;
  PageDirectory& operator=(const PageDirectory&) = delete;

  // ---- without the lock

  // Returns the block that starts at `address`, or nullptr. If an arena's block starts at
  // `address`, but no small object does, returns the arena's block.
  Block* block_at(const void* address) const;
  // Returns whether the address is in pages of a pool.
  bool is_ours(const void* address) const { return page_at(address) != nullptr; }

  // ---- with the lock

  // Returns the block that holds `address`, or nullptr if the address is in no block of this
  // allocator.
  Block* find(const void* address) const;
  // Returns the page-granular block that holds `address`, or nullptr.
  PageBlock* granular_at(const void* address) const {
    Page* page = page_at(address);
    return page != nullptr && kind_of(page) == PageKind::kPageGranular ? record_of<PageBlock>(page)
                                                                       : nullptr;
  }
  // Returns the packed page that holds `address`, or nullptr.
  PackedPage* packed_page(const void* address) const;
  // For an address in a packed page: run_at() returns the packed block that starts at `address`,
  // run_with() the packed block that holds `address`. Both return nullptr if no block does.
  PageBlock* run_at(const void* address) const;
  PageBlock* run_with(const void* address) const;

  Span* span_of(const Block& block) const;
  SegmentPlacement* placement_of(const Block& block) const;
  // Returns the pool that owns the block's pages.
  PoolIndex owning_pool_of(const Block& block) const;

  // Visits every block of a span, in the order of addresses. For an arena's block, calls
  // `visit_small_run`, if set, and then visits the small objects in the block. Free bytes of an
  // arena's block are in no visited block.
  void each_block(const Span& span, const std::function<void(const Block&)>& visit,
                  const std::function<void(const PageBlock& run)>& visit_small_run = {}) const;

  // ---- pages

  // Makes the entries of pages, so that setting them needs no memory. Throws std::bad_alloc.
  void prepare(const void* address, std::size_t size_bytes) {
    pages_.each(address, size_bytes, [](PageEntry&) {});
  }
  void set_granular(PageBlock* block, const void* address, std::size_t size_bytes) {
    set(address, size_bytes, tagged(block, PageKind::kPageGranular));
  }
  // Makes the pages of `block` packed pages, with copies of `page` as records. The pages must be
  // prepared, and no other block may start in them. On std::bad_alloc nothing has changed.
  void add_packed(const PageBlock& block, const PackedPage& page);
  // Removes pages that leave their pool.
  void remove_granular(const void* address, std::size_t size_bytes) {
    set(address, size_bytes, nullptr);
  }
  void remove_packed(char* address, std::size_t size_bytes);

  // ---- blocks in packed pages

  // On std::bad_alloc nothing has changed.
  [[gnu::always_inline]] void add_start(const PageBlock& block) {
    start_map_bytes_ +=
        pages_.find(block.address())
            ->starts.add(BlockStartMap::step_of(block.address()), block.id, StepOfBlock{blocks_});
  }
  [[gnu::always_inline]] void remove_start(const PageBlock& block) {
    pages_.find(block.address())->starts.remove(BlockStartMap::step_of(block.address()));
  }

  // begin_small_run() gives a packed block that was taken from its pool, and is within one page, to
  // an arena. end_small_run() takes the block back. Between the calls, find() does not return the
  // block. On std::bad_alloc nothing has changed.
  void begin_small_run(PageBlock* run);
  PageBlock* end_small_run(char* base);
  // Makes the record of a small object that the arena has just handed out.
  Block* add_small(char* address, std::size_t size_bytes);
  void remove_small(Block* block);

  PageBlockStore& blocks() { return blocks_; }
  const PageBlockStore& blocks() const { return blocks_; }
  ObjectPool<OwnPages>& own_pages() { return own_pages_; }

  // Returns the bytes of memory that records and tables take.
  std::size_t bytes() const;

 private:
  // The owner of a page: a pointer with the kind of page in its low bits.
  struct Page;
  // Other threads may read both members while they change.
  struct alignas(16) PageEntry {
    std::atomic<Page*> page = nullptr;  // nullptr: not a page of this allocator
    BlockStartMap starts;               // in a packed page
  };
  // kMixed: a packed page with blocks of arenas. Its record is a SmallPage.
  enum class PageKind : std::uintptr_t { kPageGranular = 0, kPacked = 1, kMixed = 2 };
  static constexpr std::uintptr_t kKindMask = 3;

  // Given a block's ID, returns the step of the page in which the block starts.
  struct StepOfBlock {
    const PageBlockStore& blocks;
    std::size_t operator()(std::uint32_t id) const {
      return BlockStartMap::step_of(blocks.at(id)->address());
    }
  };

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
  void set(const void* address, std::size_t size_bytes, Page* page) {
    pages_.each(address, size_bytes,
                [&](PageEntry& entry) { entry.page.store(page, std::memory_order_release); });
  }
  SmallPage& small_page(const void* address) const {
    return *record_of<SmallPage>(page_at(address));
  }
  PageBlock* last_start(const BlockStartMap& starts, std::size_t step) const;
  PageBlock* reaching_into(PackedPage* shared, const char* page, const void* address) const;

  PageMap<PageEntry> pages_;
  PageBlockStore blocks_;
  ObjectPool<OwnPages> own_pages_;
  ObjectPool<PackedPage> packed_pages_;
  SmallPageStore small_pages_;
  std::size_t start_map_bytes_ = 0;
};

inline Block* PageDirectory::block_at(const void* address) const {
  count_work(&WorkCounters::look_ups);
  const PageEntry* entry = pages_.find(address);
  if (entry == nullptr) return nullptr;
  Page* page = entry->page.load(std::memory_order_acquire);
  if (page == nullptr) return nullptr;
  Block* block = record_of<PageBlock>(page);
  switch (kind_of(page)) {
    case PageKind::kPageGranular:
      break;
    case PageKind::kMixed:
      if (Block* object = record_of<SmallPage>(page)->at(address)) return object;
      [[fallthrough]];
    case PageKind::kPacked: {
      std::uint32_t id = entry->starts.at(BlockStartMap::step_of(address));
      if (id == 0) return nullptr;
      block = blocks_.at(id);
      break;
    }
  }
  return block->starts_at(address) ? block : nullptr;
}

}  // namespace uvm
