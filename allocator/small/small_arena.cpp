#include "allocator/small/small_arena.hpp"

#include <jemalloc/jemalloc.h>

#include <atomic>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <new>

#include "storage/pages.hpp"

namespace uvm {

// The functions by which jemalloc gets the arena's memory, and the source that they call.
struct SmallArena::Hooks : extent_hooks_t {
  explicit Hooks(ExtentSource& extent_source);

  static ExtentSource& source_of(extent_hooks_t* hooks) {
    return static_cast<Hooks*>(hooks)->source;
  }

  ExtentSource& source;
  std::atomic<bool> has_asked_for_segments = false;
  std::atomic<bool> has_asked_for_more = false;
};

namespace {

// jemalloc declares this type in a header that it does not install.
struct ArenaConfiguration {
  extent_hooks_t* extent_hooks;
  bool metadata_use_hooks;
};

constexpr int kAlignmentFlag = MALLOCX_LG_ALIGN(std::countr_zero(SmallArena::kAlignmentBytes));
constexpr int kSegmentAlignmentFlag = MALLOCX_LG_ALIGN(std::countr_zero(SmallArena::kSegmentBytes));

// The name of a jemalloc control (mallctl) of an arena.
struct ControlName {
  ControlName(const char* format, unsigned index) {
    std::snprintf(text, sizeof text, format, index);
  }
  char text[64];
};

bool run_control(const char* format, unsigned index) {
  return uvm_je_mallctl(ControlName(format, index).text, nullptr, nullptr, nullptr, 0) == 0;
}

bool set_control(const char* format, unsigned index, std::size_t value) {
  return uvm_je_mallctl(ControlName(format, index).text, nullptr, nullptr, &value, sizeof value) ==
         0;
}

std::size_t read_control(const char* format, unsigned index) {
  std::size_t value = 0;
  std::size_t value_bytes = sizeof value;
  uvm_je_mallctl(ControlName(format, index).text, &value, &value_bytes, nullptr, 0);
  return value;
}

}  // namespace

SmallArena::Hooks::Hooks(ExtentSource& extent_source) : extent_hooks_t{}, source(extent_source) {
  // The hooks for commit, decommit and purge stay null, which jemalloc treats as "not done".
  //
  // To grow, jemalloc requests one segment. jemalloc requests a larger size only if no segment is
  // available, and in our purge(), which relies on this hook to refuse the larger size.
  alloc = [](extent_hooks_t* hooks, void* wanted_address, std::size_t size_bytes,
             std::size_t alignment, bool* zeroed, bool* committed, unsigned) -> void* {
    auto& self = *static_cast<Hooks*>(hooks);
    if (size_bytes > kSegmentBytes) self.has_asked_for_more = true;
    if (wanted_address != nullptr || size_bytes != kSegmentBytes || alignment >= kSegmentBytes) {
      return nullptr;
    }
    self.has_asked_for_segments = true;
    *zeroed = false;
    *committed = true;
    return source_of(hooks).take();
  };
  // Refuses to take back a part of a segment; jemalloc then adds it to the arena's unused pages.
  dalloc = [](extent_hooks_t* hooks, void* extent, std::size_t size_bytes, bool, unsigned) {
    if (size_bytes != kSegmentBytes) return true;
    source_of(hooks).give_back(extent);
    return false;
  };
  // Called when the arena is destroyed. Then all its memory is free, joined to whole segments.
  destroy = [](extent_hooks_t* hooks, void* extent, std::size_t, bool, unsigned) {
    source_of(hooks).give_back(extent);
  };
  split = [](extent_hooks_t*, void*, std::size_t, std::size_t, std::size_t, bool, unsigned) {
    return false;
  };
  // jemalloc never joins two segments, because each came from a separate call of `alloc`.
  merge = [](extent_hooks_t*, void*, std::size_t, void*, std::size_t, bool, unsigned) {
    return false;
  };
}

SmallArena::SmallArena(ExtentSource& source) : hooks_(std::make_unique<Hooks>(source)) {
  ArenaConfiguration configuration{hooks_.get(), false};
  std::size_t index_bytes = sizeof index_;
  if (uvm_je_mallctl("experimental.arenas_create_ext", &index_, &index_bytes, &configuration,
                     sizeof configuration) != 0) {
    throw std::bad_alloc();
  }
  flags_ = static_cast<int>(MALLOCX_ARENA(index_)) | MALLOCX_TCACHE_NONE;
  // Without this limit the arena would grow by more each time.
  if (!set_control("arena.%u.retain_grow_limit", index_, kSegmentBytes)) {
    run_control("arena.%u.destroy", index_);
    throw std::bad_alloc();
  }
}

SmallArena::~SmallArena() {
  run_control("arena.%u.destroy", index_);
}

std::size_t SmallArena::allocate(std::size_t size_bytes, void** out, std::size_t count) noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    out[i] = uvm_je_mallocx(size_bytes, flags_ | kAlignmentFlag);
    if (i == 0 && out[0] != nullptr && !hooks_->source.owns(out[0])) {
      uvm_je_sdallocx(out[0], size_bytes, flags_ | kAlignmentFlag);
      return 0;
    }
    if (out[i] != nullptr) continue;
    return i;
  }
  return count;
}

bool SmallArena::is_unsuited() const noexcept {
  return hooks_->has_asked_for_more && !hooks_->has_asked_for_segments;
}

void SmallArena::free(void* const* blocks, std::size_t count, std::size_t size_bytes) noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    uvm_je_sdallocx(blocks[i], size_bytes, flags_ | kAlignmentFlag);
  }
}

std::size_t SmallArena::usable_size(std::size_t size_bytes) noexcept {
  return uvm_je_nallocx(size_bytes, kAlignmentFlag);
}

void SmallArena::purge() noexcept {
  run_control("arena.%u.purge", index_);
  // The purge returned the segments that were fully free. Parts that our hook refused have since
  // been joined to segments, but only an allocation of exactly the segment size finds those. So
  // allocate and free such segments until none is left. The alignment keeps the arena from growing
  // here, because an aligned allocation would need more than one new segment, which our hook
  // refuses.
  void* last = nullptr;
  while (void* segment = uvm_je_mallocx(kSegmentBytes, flags_ | kSegmentAlignmentFlag)) {
    const bool is_own = hooks_->source.owns(segment);
    uvm_je_sdallocx(segment, kSegmentBytes, flags_ | kSegmentAlignmentFlag);
    if (!is_own) return;
    if (segment == last)
      return;  // not given back, because jemalloc believes that a purge is
               // running
    last = segment;
    run_control("arena.%u.purge", index_);
  }
}

std::size_t SmallArena::metadata_bytes() const noexcept {
  std::uint64_t epoch = 1;
  uvm_je_mallctl("epoch", nullptr, nullptr, &epoch, sizeof epoch);
  return read_control("stats.arenas.%u.base", index_) +
         read_control("stats.arenas.%u.internal", index_);
}

}  // namespace uvm
