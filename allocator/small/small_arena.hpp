// Blocks of up to 4 KiB from segments of 256 KiB, for one pool: one jemalloc arena whose memory
// comes from an ExtentSource (Note "Small arenas"). All of jemalloc's records lie in memory of its
// own (`metadata_use_hooks` is false, slabs have no headers). So the segments may be managed, or
// not accessible at all: they are never read, written, zeroed or advised.
//
// Segments. The arena takes one segment at a time, when none of its pages fits. Freed pages stay
// with the arena and are used first; jemalloc never ages them. A segment goes back to the source in
// purge(), if no block lies in it, and when the arena is destroyed.
//
// Threads. allocate() and free() may be called by any thread at any time, purge() by one at a time.
// jemalloc's locks guard the arena; none is held when a call returns. The source is called under
//   take():       the arena's growth lock
//   give_back():  none in purge(); in the destructor jemalloc's control lock, which every arena's
//                 construction, destruction, purge() and metadata_bytes() take
// So a lock that the source takes ranks below these, and a lock under which an arena is used ranks
// above.
//
// Fork. jemalloc registers its pthread_atfork handlers when this library is loaded, before our own.
// So its locks are taken last and released first, and they are free in the child, where blocks can
// be allocated and freed as before. The source decides which memory they have there.
//  * The caller locks out the arena's users before a fork handler takes a lock of the source.
//    Otherwise a thread in take() and the fork wait for each other.
//  * If another thread is in purge() at the fork, that purge never ends in the child. There,
//    purge() of the arena gives nothing back.
#pragma once

#include <cstddef>
#include <memory>

#include "allocator/policy/allocation_policy.hpp"
#include "allocator/small/extent_source.hpp"
#include "storage/pages.hpp"

namespace uvm {

class SmallArena {
 public:
  static constexpr std::size_t kLargestBytes = policy::kSmallBytes;
  static constexpr std::size_t kAlignmentBytes = kGranule;
  static constexpr std::size_t kSegmentBytes = policy::kSmallSegmentBytes;

  // Takes nothing from the source yet, which must outlive the arena. std::bad_alloc if there is no
  // memory for jemalloc's records, or if 4093 arenas exist, which is jemalloc's limit.
  explicit SmallArena(ExtentSource& source);

  // Gives every segment back, even with live blocks. jemalloc never unmaps the arena's 256 KiB of
  // address space for records, although no memory stays there. So arenas should last.
  ~SmallArena();
  SmallArena(const SmallArena&) = delete;
  SmallArena& operator=(const SmallArena&) = delete;

  // Writes up to `count` blocks of at least `size_bytes` (1 to kLargestBytes) to `out` and returns
  // how many; fewer if the source has no segment. Their addresses are multiples of kAlignmentBytes.
  // Returns 0 in an ending thread whose data jemalloc has destroyed: jemalloc would serve it from
  // another arena (ExtentSource::owns()).
  std::size_t allocate(std::size_t size_bytes, void** out, std::size_t count) noexcept;

  // Whether calls of allocate() have shown that this build of jemalloc cannot serve an arena.
  bool is_unsuited() const noexcept;

  // Frees blocks of one requested size, from any calls of allocate().
  void free(void* const* blocks, std::size_t count, std::size_t size_bytes) noexcept;

  // The size of the block for a request of 1 to kLargestBytes: a multiple of kAlignmentBytes.
  static std::size_t usable_size(std::size_t size_bytes) noexcept;

  // Gives back every segment in which no block lies. A segment that another thread frees meanwhile
  // may stay until the next call. In a thread whose data jemalloc has destroyed, a segment stays if
  // jemalloc has not joined its parts yet.
  void purge() noexcept;

  // Memory that jemalloc uses for this arena's own records: slabs, bins, free pages; about 90 KiB
  // for an arena without blocks. Does not count its map from addresses to slabs, 8 bytes per page
  // of the host, which all arenas share. Slow: collects the statistics of all arenas.
  std::size_t metadata_bytes() const noexcept;

 private:
  struct Hooks;

  std::unique_ptr<Hooks> hooks_;
  unsigned index_ = 0;
  int flags_ = 0;
};

}  // namespace uvm
