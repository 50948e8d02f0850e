#include "allocator/small/small_arenas.hpp"

#include <utility>

#include "allocator/small/extent_source.hpp"
#include "runtime/log.hpp"

namespace uvm {

// An arena, and the source that provides its segments.
class SmallArenas::Arena final : public ExtentSource {
 public:
  Arena(SmallArenas& owner, PoolIndex pool) : owner_(owner), pool_(pool), arena_(*this) {}

  void* take() noexcept override {
    const Segment segment = owner_.segments_.take_segment(pool_, most);
    took_page |= segment.is_new_page;
    return segment.base;
  }

  void give_back(void* segment) noexcept override {
    if (!owner_.closed_) owner_.segments_.return_segment(segment);
  }

  bool owns(const void* address) const noexcept override {
    const bool is_own = owner_.segments_.is_ours(address);
    thread_is_exiting |= !is_own;
    return is_own;
  }

  PoolIndex pool() const { return pool_; }
  SmallArena& arena() { return arena_; }

  // Valid during one call of allocate().
  Growth most = Growth::kFreeMemory;
  bool took_page = false;
  mutable bool thread_is_exiting = false;

 private:
  SmallArenas& owner_;
  const PoolIndex pool_;
  SmallArena arena_;
};

SmallArenas::SmallArenas(SegmentSource& segments) : segments_(segments) {}
SmallArenas::~SmallArenas() {
  clear();
}

SmallArenas::Arena& SmallArenas::arena_of(PoolIndex pool) {
  const std::size_t stream = position(stream_of(pool));
  if (stream >= arenas_.size()) arenas_.resize(stream + 1);
  if (arenas_[stream] == nullptr) arenas_[stream] = std::make_unique<Arena>(*this, pool);
  return *arenas_[stream];
}

SmallArenas::Batch SmallArenas::allocate(PoolIndex pool, std::size_t size_bytes, void** out,
                                         std::size_t count, Growth most) {
  Batch batch;
  bool is_unsuited = false;
  {
    const RankedGuard lock(mutex_);
    Arena& arena = arena_of(pool);
    arena.most = most;
    arena.took_page = arena.thread_is_exiting = false;
    batch.count = arena.arena().allocate(size_bytes, out, count);
    batch.took_page = arena.took_page;
    batch.thread_is_exiting = arena.thread_is_exiting;
    is_unsuited = batch.count < count && arena.arena().is_unsuited();
  }
  // Log without the lock, because the reader of the log may be slow.
  if (is_unsuited) {
    log_once(
        LogLevel::kError, "jemalloc",
        "blocks up to 4 KiB cannot be served: jemalloc was not built with --with-lg-hugepage=18. "
        "Run scripts/setup, then configure the build again");
  }
  return batch;
}

void SmallArenas::free(PoolIndex pool, void* const* blocks, std::size_t count,
                       std::size_t size_bytes) {
  const RankedGuard lock(mutex_);
  arenas_[position(stream_of(pool))]->arena().free(blocks, count, size_bytes);
}

void SmallArenas::purge(const std::function<bool(PoolIndex pool)>& wanted) {
  const RankedGuard lock(mutex_);
  for (const auto& arena : arenas_) {
    if (arena != nullptr && wanted(arena->pool())) arena->arena().purge();
  }
}

void SmallArenas::clear() {
  closed_ = true;
  arenas_.clear();
}

}  // namespace uvm
