// From an address to its page of 2 MiB, and from there to its block. Owns the records of pages and
// of blocks, which are used again and never freed before the directory.
//
// A page belongs to one page-granular block, or it is packed: it has a map of the blocks that start
// in it, and arenas may have parts of it.
//
// Guarded by the state lock, except block_at() and is_ours(). Those may run beside everything else;
// block_at() on the start of a live block. A reader of a stale address reads some record, and sees
// that it is another block's.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "allocator/base/recycled.hpp"
#include "allocator/base/work_counters.hpp"
#include "allocator/heap/block.hpp"
#include "allocator/heap/block_start_map.hpp"
#include "allocator/heap/run_block_store.hpp"
#include "allocator/heap/small_page.hpp"
#include "allocator/spans/span_store.hpp"
#include "storage/page_map.hpp"

namespace uvm {

// A page of a packed pool.
struct PackedPage {
  PoolIndex home = 0;
  std::uint32_t covering = 0;  // a block that was found to reach into it from an earlier page
  Span* span = nullptr;
  SegmentPlacement placement;
};

class PageDirectory {
 public:
  PageDirectory() = default;
  PageDirectory(const PageDirectory&) = delete;
  PageDirectory& operator=(const PageDirectory&) = delete;

  // ---- without the lock

  // The block that starts at `address`; nullptr: none does. At an address of an arena where no
  // object starts, it is the arena's part.
  Block* block_at(const void* address) const;
  // Whether the address lies in pages of a pool.
  bool is_ours(const void* address) const { return page_at(address) != nullptr; }

  // ---- with the lock

  // The block that holds `address`; nullptr: not ours, or in no block.
  Block* find(const void* address) const;
  // The page-granular block that holds `address`; nullptr: none does.
  RunBlock* granular_at(const void* address) const {
    Page* page = page_at(address);
    return page != nullptr && kind_of(page) == PageKind::kPageGranular ? record_of<RunBlock>(page)
                                                                       : nullptr;
  }
  // The packed page that holds `address`; nullptr: none does.
  PackedPage* packed_page(const void* address) const;
  // In a packed page, the block that starts at `address`, and the block that holds it; nullptr:
  // none.
  RunBlock* run_at(const void* address) const;
  RunBlock* run_with(const void* address) const;

  Span* span_of(const Block& block) const;
  SegmentPlacement* placement_of(const Block& block) const;
  // The pool whose pages the block lies in.
  PoolIndex home_of(const Block& block) const;

  // Visits every block of a span by address. The part of an arena is visited as its small objects;
  // its free bytes are in no block. Before its objects, if any, the part is passed to
  // `visit_small_run`.
  void each_block(const Span& span, const std::function<void(const Block&)>& visit,
                  const std::function<void(const RunBlock& run)>& visit_small_run = {}) const;

  // ---- pages

  // The pages can be set afterwards without memory. std::bad_alloc: there is none.
  void prepare(const void* address, std::size_t size_bytes) {
    pages_.each(address, size_bytes, [](PageEntry&) {});
  }
  void set_granular(RunBlock* block, const void* address, std::size_t size_bytes) {
    set(address, size_bytes, tagged(block, PageKind::kPageGranular));
  }
  // Makes the pages of a block, which are prepared, packed ones like `page`; only this block starts
  // in them. std::bad_alloc: nothing has changed.
  void add_packed(const RunBlock& block, const PackedPage& page);
  // Pages of no pool any more.
  void remove_granular(const void* address, std::size_t size_bytes) {
    set(address, size_bytes, nullptr);
  }
  void remove_packed(char* address, std::size_t size_bytes);

  // ---- blocks in packed pages

  // std::bad_alloc: nothing has changed.
  [[gnu::always_inline]] void add_start(const RunBlock& block) {
    start_map_bytes_ +=
        pages_.find(block.address())
            ->starts.add(BlockStartMap::step_of(block.address()), block.id, StepOfBlock{blocks_});
  }
  [[gnu::always_inline]] void remove_start(const RunBlock& block) {
    pages_.find(block.address())->starts.remove(BlockStartMap::step_of(block.address()));
  }

  // A taken packed block, which ends in the page in which it begins, becomes the part of an arena,
  // and no longer is. Meanwhile find() does not return it. std::bad_alloc: nothing has changed.
  void begin_small_run(RunBlock* run);
  RunBlock* end_small_run(char* base);
  // The record of a small object that the arena has just handed out.
  Block* add_small(char* address, std::size_t size_bytes);
  void remove_small(Block* block);

  RunBlockStore& blocks() { return blocks_; }
  const RunBlockStore& blocks() const { return blocks_; }
  Recycled<OwnPages>& own_pages() { return own_pages_; }

  // Bytes of records and tables, as taken from the system.
  std::size_t bytes() const;

 private:
  // The owner of a page: a pointer whose low bits are the kind of page.
  struct Page;
  // Both may be read beside changes.
  struct alignas(16) PageEntry {
    std::atomic<Page*> page = nullptr;  // nullptr: not ours
    BlockStartMap starts;               // in a packed page
  };
  // kMixed: a packed page of which arenas have parts; the record is that of the small objects.
  enum class PageKind : std::uintptr_t { kPageGranular = 0, kPacked = 1, kMixed = 2 };
  static constexpr std::uintptr_t kKindMask = 3;

  // The step of its page in which a block starts, by the block's number.
  struct StepOfBlock {
    const RunBlockStore& blocks;
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
  RunBlock* last_start(const BlockStartMap& starts, std::size_t step) const;
  RunBlock* reaching_into(PackedPage* shared, const char* page, const void* address) const;

  PageMap<PageEntry> pages_;
  RunBlockStore blocks_;
  Recycled<OwnPages> own_pages_;
  Recycled<PackedPage> packed_pages_;
  SmallPageStore small_pages_;
  std::size_t start_map_bytes_ = 0;
};

inline Block* PageDirectory::block_at(const void* address) const {
  count_work(&WorkCounters::look_ups);
  const PageEntry* entry = pages_.find(address);
  if (entry == nullptr) return nullptr;
  Page* page = entry->page.load(std::memory_order_acquire);
  if (page == nullptr) return nullptr;
  Block* block = record_of<RunBlock>(page);
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
