#include <uvmalloc/allocator/small_segment.hpp>

#include <sys/mman.h>

#include <memory>
#include <new>

namespace uvm {
namespace {

// One more granule than objects is never reached: numbers go from 1 to kGranules.
static_assert(SmallSegment::kGranules < 65536);

constexpr std::size_t kMappedBytes =
    round_up(sizeof(SmallSegment) + SmallSegment::kGranules * sizeof(Block), 4096);

}  // namespace

Block* SmallSegment::add(char* address, std::size_t size_bytes) {
  std::uint16_t number = free;
  if (number != 0) {
    free = static_cast<std::uint16_t>(record(number)->use.size_bytes());
  } else {
    number = ++made;
    std::construct_at(record(number));
  }
  Block* block = record(number);
  block->use = {};
  block->kind = BlockKind::kSmall;
  block->plain = true;
  block->exported = false;
  block->pool = pool;
  block->place_at(address);
  block->real.resize(size_bytes);
  starts[granule_of(address)].store(number, std::memory_order_release);
  ++live;
  return block;
}

void SmallSegment::remove(Block* block) {
  auto number = static_cast<std::uint16_t>(block - record(1) + 1);
  starts[granule_of(block->address())].store(0, std::memory_order_release);
  block->set(BlockState::kFree);
  block->place_at(nullptr);
  block->use.resize(free);
  free = number;
  --live;
}

SmallSegmentStore::~SmallSegmentStore() {
  for (SmallSegment* segment : all_) munmap(segment, kMappedBytes);
}

SmallSegment* SmallSegmentStore::make(char* base, Span* span, PoolIndex pool,
                                      const SegmentPlacement& placement) {
  SmallSegment* segment = nullptr;
  if (!free_.empty()) {
    segment = free_.back();
    free_.pop_back();
  } else {
    // Nothing needs memory once it is mapped, nor does drop().
    if (all_.capacity() == all_.size()) all_.reserve(2 * all_.size() + 1);
    if (free_.capacity() <= all_.size()) free_.reserve(2 * all_.size() + 1);
    void* mapped = mmap(nullptr, kMappedBytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) throw std::bad_alloc();
    segment = static_cast<SmallSegment*>(mapped);  // all zero, which is what an empty one is
    all_.push_back(segment);
  }
  segment->base = base;
  segment->span = span;
  segment->placement = placement;
  segment->pool = pool;
  return segment;
}

// All objects are back; `made` and the list of free records stay as they are.
void SmallSegmentStore::drop(SmallSegment* segment) {
  free_.push_back(segment);
}

std::size_t SmallSegmentStore::bytes() const {
  std::size_t bytes = 0;
  for (const SmallSegment* segment : all_) {
    bytes += sizeof(SmallSegment) + segment->made * sizeof(Block);
  }
  return bytes;
}

}  // namespace uvm
