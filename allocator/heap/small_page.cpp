#include "allocator/heap/small_page.hpp"

#include <sys/mman.h>

#include <memory>
#include <new>

namespace uvm {
namespace {

// Records are numbered from 1 to kGranules.
static_assert(SmallPage::kGranules < 65536);

constexpr std::size_t kMappedBytes =
    round_up(sizeof(SmallPage) + SmallPage::kGranules * sizeof(Block), 4096);

}  // namespace

Block* SmallPage::with(const void* address) {
  constexpr std::size_t kMostGranules = kSmallBytes / kGranule;
  const std::size_t last = granule_of(address);
  const std::size_t first = last >= kMostGranules ? last - kMostGranules + 1 : 0;
  for (std::size_t granule = last + 1; granule-- > first;) {
    const std::uint16_t number = starts[granule].load(std::memory_order_relaxed);
    if (number == 0) continue;
    Block* object = record(number);
    return address < object->end() ? object : nullptr;
  }
  return nullptr;
}

Block* SmallPage::add(char* address, std::size_t size_bytes, PoolIndex pool) {
  std::uint16_t number = free;
  if (number != 0) {
    free = static_cast<std::uint16_t>(record(number)->use.size_bytes());
  } else {
    number = ++made;
    std::construct_at(record(number));
  }
  Block* object = record(number);
  object->use = {};
  object->kind = BlockKind::kSmall;
  object->has_no_side_state = true;
  object->exported = false;
  object->pool = pool;
  object->place_at(address);
  object->real.resize(size_bytes);
  starts[granule_of(address)].store(number, std::memory_order_release);
  return object;
}

void SmallPage::remove(Block* object) {
  auto number = static_cast<std::uint16_t>(object - record(1) + 1);
  starts[granule_of(object->address())].store(0, std::memory_order_release);
  object->set(BlockState::kFree);
  object->place_at(nullptr);
  object->use.resize(free);
  free = number;
}

SmallPageStore::~SmallPageStore() {
  for (SmallPage* page : all_) munmap(page, kMappedBytes);
}

SmallPage* SmallPageStore::make(PackedPage* shared) {
  SmallPage* page = nullptr;
  if (!free_.empty()) {
    page = free_.back();
    free_.pop_back();
  } else {
    // Reserve before mmap(), so that nothing fails after mmap(), and drop() allocates nothing.
    if (all_.capacity() == all_.size()) all_.reserve(2 * all_.size() + 1);
    if (free_.capacity() <= all_.size()) free_.reserve(2 * all_.size() + 1);
    void* mapped = mmap(nullptr, kMappedBytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) throw std::bad_alloc();
    page = static_cast<SmallPage*>(mapped);  // all zero, which means an empty page
    all_.push_back(page);
  }
  page->shared = shared;
  return page;
}

// The page keeps its objects' records for its next use.
void SmallPageStore::drop(SmallPage* page) {
  free_.push_back(page);
}

std::size_t SmallPageStore::bytes() const {
  std::size_t bytes = 0;
  for (const SmallPage* page : all_) bytes += sizeof(SmallPage) + page->made * sizeof(Block);
  return bytes;
}

}  // namespace uvm
