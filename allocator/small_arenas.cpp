#include <uvmalloc/allocator/small_arenas.hpp>

#include <utility>

#include <uvmalloc/allocator/extent_source.hpp>

namespace uvm {

// An arena and the source of its pages.
class SmallArenas::Arena final : public ExtentSource {
 public:
  Arena(SmallArenas& owner, PoolIndex pool) : owner_(owner), pool_(pool), arena_(*this) {}

  void* take(std::size_t size_bytes) noexcept override {
    if (!may_take_pages) return nullptr;
    void* run = owner_.pages_.take(pool_, size_bytes, any_facade);
    took_pages |= run != nullptr;
    return run;
  }

  void give_back(void* run, std::size_t size_bytes) noexcept override {
    if (!owner_.closed_) owner_.pages_.give_back(pool_, run, size_bytes);
  }

  PoolIndex pool() const { return pool_; }
  SmallArena& arena() { return arena_; }

  bool any_facade = false;
  // In one call of allocate().
  bool may_take_pages = false;
  bool took_pages = false;

 private:
  SmallArenas& owner_;
  const PoolIndex pool_;
  SmallArena arena_;
};

SmallArenas::SmallArenas(Pages pages) : pages_(std::move(pages)) {}

SmallArenas::~SmallArenas() {
  clear();
}

SmallArenas::Arena& SmallArenas::arena_of(PoolIndex pool) {
  const std::size_t stream = pool / kPoolsPerStream;
  if (stream >= arenas_.size()) arenas_.resize(stream + 1);
  if (arenas_[stream] == nullptr) arenas_[stream] = std::make_unique<Arena>(*this, pool);
  return *arenas_[stream];
}

SmallArenas::Batch SmallArenas::allocate(PoolIndex pool, std::size_t size_bytes, void** out,
                                         std::size_t count, bool may_take_pages) {
  std::lock_guard lock(mutex_);
  Arena& arena = arena_of(pool);
  arena.may_take_pages = may_take_pages;
  arena.took_pages = false;
  const std::size_t got = arena.arena().allocate(size_bytes, out, count);
  return {got, arena.took_pages};
}

void SmallArenas::free(PoolIndex pool, void* const* blocks, std::size_t count,
                       std::size_t size_bytes) {
  std::lock_guard lock(mutex_);
  arenas_[pool / kPoolsPerStream]->arena().free(blocks, count, size_bytes);
}

void SmallArenas::use_any_facade(PoolIndex pool) {
  std::lock_guard lock(mutex_);
  arenas_[pool / kPoolsPerStream]->any_facade = true;
}

void SmallArenas::purge(const std::function<bool(PoolIndex pool)>& wanted) {
  std::lock_guard lock(mutex_);
  for (const auto& arena : arenas_) {
    if (arena != nullptr && wanted(arena->pool())) arena->arena().purge();
  }
}

void SmallArenas::clear() {
  closed_ = true;
  arenas_.clear();
}

}  // namespace uvm
