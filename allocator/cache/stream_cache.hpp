// The blocks of one stream's pools that one thread has freed and will likely request again, in bins
// by size, and the thread's counts of that stream. A request gets the last block cached for its
// rounded size. Owned by a ThreadCache, whose lock guards it.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "allocator/base/cache_lines.hpp"
#include "allocator/base/fibonacci_hash.hpp"
#include "allocator/counters/stream_counters.hpp"
#include "allocator/counters/thread_counters.hpp"
#include "allocator/heap/block_chain.hpp"
#include "allocator/heap/block_pools.hpp"

namespace uvm {

// Which cached blocks: small objects, medium blocks, large blocks (of at least kLargeBytes), or the
// last two (kRuns).
enum class CachedKind : std::uint8_t { kSmall, kMedium, kLarge, kRuns };

class alignas(kCacheLinePair) StreamCache {
 public:
  // Counts also in `thread_counts`, those of the stream's memory kind and device.
  StreamCache(const StreamKey& key, StreamIndex stream, ThreadCounters& thread_counts)
      : stream_(stream), thread_counts_(&thread_counts) {
    rename(key);
  }
  StreamCache(const StreamCache&) = delete;
  StreamCache& operator=(const StreamCache&) = delete;

  // Value of on_miss() if the caller must take the slow path.
  static constexpr StreamIndex kUnknownStream{~std::uint32_t{0}};

  const StreamKey& key() const { return key_; }
  StreamIndex stream() const { return stream_; }
  bool serves(Facade facade, int device, StreamHandle stream) const {
    return key_.stream == stream && key_.facade == facade && key_.device == device;
  }
  // Returns stream(), or kUnknownStream while large blocks are cached: after a miss, the caller
  // must flush these first (flush_large()).
  StreamIndex on_miss() const { return on_miss_; }
  const StreamCounters& counts() const { return counts_; }
  std::size_t cached_bytes() const { return medium_bytes_ + other_bytes_; }

  // ---- called by the thread's own allocations and frees

  // Returns a cached block for `size_bytes`, or nullptr.
  Block* take(std::size_t size_bytes);
  // Counts the free of a live block without side state, also in `*live_bytes`, and caches the
  // block. Returns false, and changes nothing, if more than `most_bytes` would be cached, or if the
  // block's bin is full.
  bool put(Block* block, std::size_t most_bytes, std::int64_t* live_bytes);
  // Caches a small object that was just taken from the arena.
  void put_spare(Block* block);
  // Returns false if a peak of the thread's counts may have been passed.
  [[gnu::always_inline]] bool count_allocated(std::size_t size_bytes, std::size_t requested_bytes,
                                              bool from_cache) {
    counts_.allocated(size_bytes);
    return thread_counts_->allocated(size_class_of(size_bytes), size_bytes, requested_bytes,
                                     from_cache);
  }
  [[gnu::always_inline]] void count_freed(std::size_t size_bytes, std::size_t requested_bytes) {
    counts_.freed(size_bytes);
    thread_counts_->freed(size_class_of(size_bytes), size_bytes, requested_bytes);
  }

  // ---- what is cached

  // Assigns the pools to another stream, whose requests get the cached blocks.
  void rename(const StreamKey& key);
  // Sets whether large blocks are cached from now on.
  void set_may_cache_large(bool keep);
  // Caches no block from now on.
  void stop() { largest_cached_ = 0; }

  // Each of these moves cached blocks to `*out`.
  void flush(CachedKind kind, BlockChain* out) noexcept;
  void flush_all(BlockChain* out) noexcept {
    flush(CachedKind::kSmall, out);
    flush(CachedKind::kRuns, out);
  }
  // Called when a large request misses. Moves the large blocks, because these may serve the request
  // once they are in their pool. Returns false if large requests miss so often that the stream
  // should cache no large blocks.
  bool flush_large(BlockChain* out) noexcept;
  // Moves up to kFlushedBlocks small objects of the same size, to make room.
  void flush_some(const Block& like, BlockChain* out) noexcept;
  // Moves the large blocks, because cached blocks cannot be joined with free neighbours. Also moves
  // the medium blocks if they have more than `most_medium_bytes`.
  void trim(std::size_t most_medium_bytes, BlockChain* out) noexcept {
    flush(CachedKind::kLarge, out);
    if (medium_bytes_ > most_medium_bytes) flush(CachedKind::kMedium, out);
  }

 private:
  struct Bin {
    BlockChain blocks;
    std::uint32_t granules = 0;  // size of each block
    std::uint32_t count = 0;

    void put(Block* block) {
      block->real.references = 0;
      block->set(BlockState::kCached);
      blocks.push(block);
      ++count;
    }
    Block* pop() {
      --count;
      return blocks.pop();
    }
    // Moves all but `keep` blocks to `*out`. Returns the bytes moved.
    std::size_t empty(std::uint32_t keep, BlockChain* out) noexcept;
  };
  static constexpr std::size_t kSmallBins = kSmallBytes / kGranule;
  // Small and medium blocks have a bin for each size.
  static constexpr std::size_t kDirectBins = kLargeBytes / kGranule - 1;
  // As in pools, a medium request may get a block that is too large by less than kSmallestPacked.
  static constexpr std::size_t kNearBins = kSmallestPacked / kGranule;
  static constexpr std::array<std::uint32_t, kSmallBins> kMostSmall = [] {
    std::array<std::uint32_t, kSmallBins> most{};
    for (std::size_t i = 0; i < kSmallBins; ++i) {
      most[i] = static_cast<std::uint32_t>(policy::kSmallBinBytes / ((i + 1) * kGranule));
    }
    return most;
  }();
  static constexpr unsigned kSetBits = 6;
  static constexpr std::size_t kSets = std::size_t{1} << kSetBits;
  static constexpr std::size_t kWays = 4;
  struct alignas(64) Set {  // a cache line
    std::array<Bin, kWays> bins;
  };

  static std::size_t set_of(std::size_t granules) { return fibonacci_slot<kSetBits>(granules); }
  // Returns the first bin with blocks among the kNearBins bins from `index` on, or nullptr.
  Bin* find_near(std::size_t index) {
    const std::size_t word = index / 64;
    std::uint64_t near = filled_medium_[word] >> index % 64;
    near |= filled_medium_[word + 1] << 1 << (63 - index % 64);
    near &= (std::uint64_t{1} << kNearBins) - 1;
    if (near == 0) return nullptr;
    return &direct_[index + static_cast<std::size_t>(std::countr_zero(near))];
  }
  void note_empty(const Bin& medium) {
    const auto index = static_cast<std::size_t>(&medium - direct_.data());
    filled_medium_[index / 64] &= ~(std::uint64_t{1} << index % 64);
  }
  Bin* find(std::size_t granules) {
    for (Bin& bin : runs_[set_of(granules)].bins) {
      if (bin.granules == granules) return &bin;
    }
    return nullptr;
  }
  // Assigns an empty bin of its set to a size that has no bin. Returns nullptr if none is empty.
  Bin* claim(std::uint32_t granules);

  // A hit touches the first two cache lines and the bin's.
  StreamKey key_;
  const StreamIndex stream_;
  ThreadCounters* const thread_counts_;
  StreamIndex on_miss_{};
  std::size_t medium_bytes_ = 0;  // of cached medium blocks
  std::size_t other_bytes_ = 0;   // of all other cached blocks
  // Largest cached size; 0: no block is cached. Cached large blocks cannot be joined with their
  // free neighbours, so other requests get less suitable blocks, which costs new pages in the end.
  // Large blocks are therefore cached only if hardly any large request misses.
  std::size_t largest_cached_ = 0;
  std::uint64_t blocks_at_miss_ = 0;  // counts_.blocks when large blocks were last flushed
  StreamCounters counts_;
  // By size in granules: small objects, then medium blocks.
  std::array<Bin, kDirectBins> direct_;
  std::array<std::uint64_t, 3> filled_medium_{};  // a bit for each bin; the last word stays 0
  std::array<Set, kSets> runs_;
  std::uint64_t filled_sets_ = 0;  // a bit for each set that may hold blocks
};

[[gnu::always_inline]] inline Block* StreamCache::take(std::size_t size_bytes) {
  Block* block = nullptr;
  const std::size_t index = (size_bytes - 1) / kGranule;  // huge for 0 bytes
  if (index < kSmallBins) {
    if (Bin& bin = direct_[index]; bin.count != 0) {
      block = bin.pop();
      other_bytes_ -= (index + 1) * kGranule;
    }
  } else if (index < kDirectBins) {
    if (Bin* bin = find_near(index); bin != nullptr) {
      block = bin->pop();
      medium_bytes_ -= block->size_bytes();
      if (bin->count == 0) note_empty(*bin);
    }
  } else if (size_bytes <= largest_cached_) {
    Bin* bin = find(rounded_size(key_.facade, size_bytes) / kGranule);
    if (bin != nullptr && bin->count != 0) {
      block = bin->pop();
      other_bytes_ -= block->size_bytes();
    }
  }
  return block;
}

[[gnu::always_inline]] inline bool StreamCache::put(Block* block, std::size_t most_bytes,
                                                    std::int64_t* live_bytes) {
  const std::size_t size_bytes = block->size_bytes();
  if (cached_bytes() + size_bytes > most_bytes || size_bytes > largest_cached_) return false;
  Bin* bin = nullptr;
  const std::size_t index = size_bytes / kGranule - 1;
  if (block->kind == BlockKind::kSmall) {
    bin = &direct_[index];
    if (bin->count >= kMostSmall[index]) return false;
    other_bytes_ += size_bytes;
  } else if (index < kDirectBins) {
    bin = &direct_[index];
    if (bin->count >= policy::kBinBlocks) return false;
    medium_bytes_ += size_bytes;
    filled_medium_[index / 64] |= std::uint64_t{1} << index % 64;
  } else {
    // The bin is chosen by the requested size, because a loop requests the same size again. If the
    // request was aligned or the block a near fit, that size can be below kLargeBytes.
    const std::size_t for_bytes =
        block->kind == BlockKind::kPageGranular
            ? size_bytes
            : std::max(rounded_size(key_.facade, block->requested_bytes()), kLargeBytes);
    const std::size_t granules = for_bytes / kGranule;
    bin = find(granules);
    if (bin == nullptr) [[unlikely]]
      bin = claim(static_cast<std::uint32_t>(granules));
    if (bin == nullptr || bin->count >= policy::kBinBlocks) return false;
    other_bytes_ += size_bytes;
    filled_sets_ |= std::uint64_t{1} << set_of(granules);
  }
  count_freed(size_bytes, block->requested_bytes());
  *live_bytes -= static_cast<std::int64_t>(size_bytes);
  bin->put(block);
  return true;
}

}  // namespace uvm
