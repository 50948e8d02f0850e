// Small blocks of one pool, up to 4 KiB each, cut from segments of 256 KiB. A jemalloc arena
// manages the blocks; an ExtentSource provides the segments (Note "Small arenas"). jemalloc keeps
// all records in its own memory (`metadata_use_hooks` is false; slabs have no headers). So jemalloc
// never reads, writes, zeroes or advises segments. They may be managed memory, or not accessible at
// all.
//
// Segments. The arena takes one segment at a time, if no free page fits. The arena keeps freed
// pages and uses them first; jemalloc never purges them by age. purge() returns segments without
// blocks to the source, and the destructor returns all segments.
//
// Threads. Any thread may call allocate() and free() at any time; one thread at a time may call
// purge(). jemalloc's locks guard the arena, and no call returns while it holds such a lock. The
// source is called under
//   take():       the arena's growth lock
//   give_back():  no lock in purge(); in the destructor jemalloc's control lock, which the
//                 construction, destruction, purge() and metadata_bytes() of every arena take
// So a lock that the source takes ranks below these locks, and a lock under which an arena is used
// ranks above them.
//
// Fork. jemalloc registers its pthread_atfork handlers when this library is loaded, before ours. So
// jemalloc's locks are taken last and released first. These locks are free in the child, so blocks
// can be allocated and freed there as before. The source decides which memory the child's blocks
// get.
//  * The caller must lock out all users of the arena before a fork handler takes a lock of the
//    source. Otherwise a thread in take() and the forking thread could wait for each other.
//  * If another thread is in purge() during the fork, that purge never ends in the child. Then
//    purge() of this arena gives nothing back in the child.
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

  // Takes nothing from the source yet. The source must outlive the arena. Throws std::bad_alloc if
  // memory for jemalloc's records runs out, or if 4093 arenas exist, which is jemalloc's limit.
  explicit SmallArena(ExtentSource& source);

  // Gives every segment back, even segments with live blocks. jemalloc never unmaps the 256 KiB of
  // address space for the arena's records, although these records take no memory. So keep and reuse
  // arenas.
  ~SmallArena();
  SmallArena(const SmallArena&) = delete;
  SmallArena& operator=(const SmallArena&) = delete;

  // Allocates up to `count` blocks of at least `size_bytes` (1 to kLargestBytes), and writes their
  // addresses, multiples of kAlignmentBytes, to `out`. Returns their number, which is smaller than
  // `count` if the source has no segment. Returns 0 in an ending thread if jemalloc has destroyed
  // the thread's data, because jemalloc would then use another arena (ExtentSource::owns()).
  std::size_t allocate(std::size_t size_bytes, void** out, std::size_t count) noexcept;

  // Returns whether calls of allocate() have shown that this build of jemalloc cannot serve an
  // arena.
  bool is_unsuited() const noexcept;

  // Frees blocks that were requested with this size, by one or more calls of allocate().
  void free(void* const* blocks, std::size_t count, std::size_t size_bytes) noexcept;

  // Returns the block size for a request of 1 to kLargestBytes: a multiple of kAlignmentBytes.
  static std::size_t usable_size(std::size_t size_bytes) noexcept;

  // Gives back every segment without blocks. If another thread frees the last block of a segment
  // meanwhile, the segment may stay until the next call. If jemalloc has destroyed the calling
  // thread's data, a segment stays until jemalloc has joined its parts.
  void purge() noexcept;

  // Returns the bytes of jemalloc's records for this arena (slabs, bins, free pages): about 90 KiB
  // without blocks. Does not count the map from addresses to slabs, which all arenas share: 8 bytes
  // per page of the host. Slow, because it collects the statistics of all arenas.
  std::size_t metadata_bytes() const noexcept;

 private:
  struct Hooks;

  std::unique_ptr<Hooks> hooks_;
  unsigned index_ = 0;
  int flags_ = 0;
};

}  // namespace uvm
