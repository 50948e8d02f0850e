// Counts the blocks of one memory kind on one device that one thread has allocated and freed, and
// knows how much more the thread can allocate before the process's peak might rise. A figure of the
// process is the sum over its threads. The peak of that sum is still exact, because the headroom
// between the current sum and the peak is divided among the threads. A thread that has used up its
// part sums all threads' counts again (PeakTracker).
//
// Owned by the thread whose cache contains them; other threads read them under the cache's lock.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <uvmalloc/statistics.hpp>
#include "allocator/base/cache_lines.hpp"
#include "allocator/policy/size_classes.hpp"

namespace uvm {

// Counts of blocks.
struct Amounts {
  std::int64_t blocks = 0;
  std::int64_t bytes = 0;            // sum of the blocks' rounded sizes
  std::int64_t requested_bytes = 0;  // sum of the requested sizes

  Amounts& operator+=(const Amounts& other) {
    blocks += other.blocks;
    bytes += other.bytes;
    requested_bytes += other.requested_bytes;
    return *this;
  }
  Amounts& operator-=(const Amounts& other) {
    blocks -= other.blocks;
    bytes -= other.bytes;
    requested_bytes -= other.requested_bytes;
    return *this;
  }
  friend Amounts operator+(Amounts left, const Amounts& right) { return left += right; }
  friend Amounts operator-(Amounts left, const Amounts& right) { return left -= right; }
  bool exceeds(const Amounts& limit) const {
    return blocks > limit.blocks || bytes > limit.bytes || requested_bytes > limit.requested_bytes;
  }
};

class alignas(kCacheLinePair) ThreadCounters {
 public:
  // Returns false if a peak may have been passed. `from_cache`: the block needed no new memory.
  [[gnu::always_inline]] bool allocated(SizeClass size_class, std::size_t bytes,
                                        std::size_t requested_bytes, bool from_cache) {
    auto of = static_cast<std::size_t>(size_class);
    const Amounts one{1, static_cast<std::int64_t>(bytes),
                      static_cast<std::int64_t>(requested_bytes)};
    live_[of] += one;
    total_[of] += one;
    if (!from_cache) ++misses_[of];
    return !live_[of].exceeds(limits_[of]) && !(live_[0] + live_[1]).exceeds(limits_[kAll]);
  }
  void freed(SizeClass size_class, std::size_t bytes, std::size_t requested_bytes) {
    live_[static_cast<std::size_t>(size_class)] -=
        {1, static_cast<std::int64_t>(bytes), static_cast<std::int64_t>(requested_bytes)};
  }

  static constexpr std::size_t kAll = kSizeClasses;  // both classes together
  Amounts live(std::size_t of) const { return of == kAll ? live_[0] + live_[1] : live_[of]; }
  Amounts total(std::size_t of) const { return of == kAll ? total_[0] + total_[1] : total_[of]; }
  // Allocations that were served from a cache.
  std::uint64_t hits(std::size_t of) const {
    return static_cast<std::uint64_t>(total_[of].blocks) - misses_[of];
  }
  void set_limit(std::size_t of, const Amounts& limit) { limits_[of] = limit; }

  // Adds the counts of another thread. The limits do not change.
  void absorb(const ThreadCounters& other) {
    for (std::size_t of = 0; of < kSizeClasses; ++of) {
      live_[of] += other.live_[of];
      total_[of] += other.total_[of];
      misses_[of] += other.misses_[of];
    }
  }

 private:
  std::array<Amounts, kSizeClasses> live_;   // negative if this thread freed more than it allocated
  std::array<Amounts, kSizeClasses> total_;  // allocated since the start
  std::array<std::uint64_t, kSizeClasses> misses_{};
  std::array<Amounts, kSizeClasses + 1> limits_;
};

}  // namespace uvm
