// Blocks of up to 4 KiB from segments of 256 KiB, for one pool: one jemalloc arena whose memory
// comes from an ExtentSource. Everything jemalloc remembers of blocks and segments lies in memory
// of its own (`metadata_use_hooks` is false, slabs have no headers), so the segments may be
// managed, or not accessible at all: they are never read, written, zeroed or advised.
//
// Segments. The arena takes one segment at a time, when none of its pages fits. Freed pages stay
// with the arena and are used again before anything is taken, jemalloc never ages them. A segment
// goes back to the source in purge(), if no block lies in it, and when the arena is destroyed.
//
// Threads. allocate() and free() may be called by any thread at any time, purge() by one at a time.
// jemalloc's locks guard the arena; none is held when a call returns. The source is called under
//   take():       the arena's growth lock
//   give_back():  none in purge(); in the destructor jemalloc's control lock, which every arena's
//                 construction, destruction, purge() and metadata_bytes() take
// so a lock that the source takes ranks below these, and a lock under which an arena is used ranks
// above.
//
// Fork. jemalloc registers its pthread_atfork handlers when this library is loaded, before anybody
// of ours can: its locks are taken last, released first, and whole in the child, where blocks can
// be allocated and freed as before; what their memory is there, is the source's business. Two
// things are for the caller to see to. A fork handler must not hold a lock of the source's, or a
// thread in take() and the fork wait for each other, unless it has locked out the arena's users
// first. And a purge() that another thread is in is never finished in the child, where purge() of
// that arena then gives nothing back.
#pragma once

#include <cstddef>
#include <memory>

#include <uvmalloc/allocator/policy/allocation_policy.hpp>
#include <uvmalloc/allocator/small/extent_source.hpp>
#include <uvmalloc/storage/pages.hpp>

namespace uvm {

class SmallArena {
 public:
  static constexpr std::size_t kLargestBytes = policy::kSmallBytes;
  static constexpr std::size_t kAlignmentBytes = kGranule;
  static constexpr std::size_t kSegmentBytes = policy::kSmallSegmentBytes;

  // Takes nothing from the source yet, which must outlive the arena. std::bad_alloc: no memory for
  // jemalloc's records, or as many arenas as jemalloc can tell apart (4093 at once).
  explicit SmallArena(ExtentSource& source);

  // Gives every segment back, live blocks or not. jemalloc never unmaps the arena's 256 KiB of
  // address space for records, though no memory stays there: arenas are to last, not to come and
  // go.
  ~SmallArena();
  SmallArena(const SmallArena&) = delete;
  SmallArena& operator=(const SmallArena&) = delete;

  // Writes up to `count` blocks of at least `size_bytes` (1 to kLargestBytes) to `out` and returns
  // how many; fewer when the source has none. Their addresses are multiples of kAlignmentBytes.
  // None in a thread that ends and whose data jemalloc has destroyed: jemalloc serves it from an
  // arena of its own, and ExtentSource::owns() has said no.
  std::size_t allocate(std::size_t size_bytes, void** out, std::size_t count) noexcept;

  // Takes back blocks that one size was asked for; not necessarily of one call.
  void free(void* const* blocks, std::size_t count, std::size_t size_bytes) noexcept;

  // What a request of 1 to kLargestBytes bytes really gets: a multiple of kAlignmentBytes.
  static std::size_t usable_size(std::size_t size_bytes) noexcept;

  // Gives every segment back in which no block lies. A segment that becomes free during the call,
  // by another thread, may stay until the next. In a thread whose data jemalloc has destroyed,
  // segments stay whose parts jemalloc has not joined yet.
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
