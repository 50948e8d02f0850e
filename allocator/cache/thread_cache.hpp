// Caches the blocks that one thread has freed and will likely request again. A request gets the
// last block cached for its stream and rounded size. A hit takes no lock that another thread takes
// in normal operation (AsymmetricLock), makes no call and touches only the cache line of the
// block's record. Only blocks without side state are cached (invariant 11). Flushed blocks go to
// the pools.
//
// A cache belongs to its thread; other threads may flush the cache and read its counters while they
// hold its lock. Data of other threads is never in the cache's pairs of cache lines.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "allocator/base/asymmetric_lock.hpp"
#include "allocator/base/cache_lines.hpp"
#include "allocator/base/fibonacci_hash.hpp"
#include "allocator/counters/figure_store.hpp"
#include "allocator/counters/stream_counters.hpp"
#include "allocator/counters/thread_counters.hpp"
#include "allocator/heap/block_chain.hpp"
#include "allocator/heap/block_pools.hpp"

namespace uvm {

class alignas(kCacheLinePair) ThreadCache {
 public:
  // `most_bytes` limits the cached bytes of one stream. `requests_per_look` is 0 or a power of two.
  // Every `requests_per_look`th allocation of a stream returns kDoneAtLimit if it is a hit, so that
  // the caller reads the clock. If 0, no allocation does.
  ThreadCache(FigureStore::ThreadCounts thread_counts, std::size_t most_bytes,
              std::uint64_t requests_per_look)
      : most_bytes_(most_bytes),
        look_mask_(requests_per_look - 1),
        thread_counts_(std::move(thread_counts)) {}
  ThreadCache(const ThreadCache&) = delete;
  ThreadCache& operator=(const ThreadCache&) = delete;

  AsymmetricLock lock;

  // What allocate() has done.
  enum class Outcome : std::uint8_t {
    kMiss,  // no block was taken
    kDone,
    kDoneAtLimit,  // done; a peak may have been passed, or it is time to read the clock
  };

  // ---- called by the owner, with the lock

  // Value of `*missed` after a miss if the caller must take the slow path.
  static constexpr StreamIndex kUnknownStream{~std::uint32_t{0}};

  // Returns the block that this thread last allocated at `address`, or nullptr if known_ no longer
  // contains that block. May be called without the lock.
  Block* known_at(const void* address) const {
    Block* block = known_[known_slot(address)];
    return block != nullptr && block->starts_at(address) ? block : nullptr;
  }

  // Returns a cached block for `size_bytes`, or nullptr on a miss. A miss sets `*missed` to the
  // stream's index, so that the caller need not look it up. `*missed` is kUnknownStream if the
  // caller must take the slow path: if the stream is not among the 16 recently used streams, or if
  // the stream's cached large blocks have to be flushed first (flush_large()).
  Block* allocate(Facade facade, int device, StreamHandle stream, std::size_t size_bytes,
                  Outcome* outcome, StreamIndex* missed);
  // Caches a block that the program frees. The block must be live and have no side state. Returns
  // the block's stream, or nullptr if the cache refuses the block, for example for lack of room.
  const StreamKey* put(Block* block);
  // Counts the free of a block that put() has refused; the caller returns the block to its pool.
  // Returns the block's stream, or nullptr if the stream is not open.
  const StreamKey* pass_on(const Block& block);

  // Starts to cache the blocks of a stream's pools. `counter` is the index of the counters for the
  // stream's memory kind and device.
  void open(const StreamKey& key, StreamIndex stream, std::size_t counter);
  bool is_open(StreamIndex stream) const { return find_stream(stream) != nullptr; }
  // Sets whether large blocks of these pools are cached from now on.
  void set_may_cache_large(StreamIndex stream, bool keep);
  // Called when a large request misses. Moves the stream's cached large blocks to `*out`, because
  // these blocks may serve the request after they have returned to their pool. Returns false if
  // large requests miss so often that the stream should cache no large blocks.
  bool flush_large(StreamIndex stream, BlockChain* out) noexcept;
  // Moves the stream's large blocks to `*out`, because cached blocks cannot be joined with free
  // neighbours. Also moves the medium blocks if their sum exceeds `most_medium_bytes`.
  void trim(StreamIndex stream, std::size_t most_medium_bytes, BlockChain* out) noexcept;
  // Moves the cached blocks of these pools to `*out`, and stops caching blocks of these pools.
  void close(StreamIndex stream, BlockChain* out) noexcept;
  // Drops the stream's bins and counts. No block of the stream may be cached.
  void drop(StreamIndex stream) noexcept;
  // Assigns the pools to another stream, whose requests get the cached blocks after open().
  void rename(StreamIndex stream, const StreamKey& key);
  // Caches a small object that was just taken from the arena.
  void put_spare(Block* block);

  ThreadCounters& counts(std::size_t counter) { return thread_counts_[counter]; }

  // Count a block that bypasses the cache. The stream must be open.
  // count_allocated() also remembers the block for known_at(), and returns false if a peak may have
  // been passed.
  [[gnu::always_inline]] bool count_allocated(StreamIndex stream, Block& block, bool from_cache) {
    return allocated(streams_[position(stream)].get(), block, block.requested_bytes(), from_cache);
  }
  void count_freed(StreamIndex stream, const Block& block) {
    freed(streams_[position(stream)].get(), block);
  }

  // ---- called by any thread that holds the lock

  // Moves cached blocks of the stream to `*out`. `kind` says which: small objects, medium blocks,
  // large blocks (of at least kLargeBytes), or the last two (kRuns).
  enum class CachedKind : std::uint8_t { kSmall, kMedium, kLarge, kRuns };
  void flush(StreamIndex stream, CachedKind kind, BlockChain* out) noexcept;
  void flush_all(BlockChain* out) noexcept;
  // Moves up to kFlushedBlocks cached small objects of the same size to `*out`, to make room.
  void flush_some(const Block& like, BlockChain* out) noexcept;

  // Returns whether the thread has allocated since the previous call.
  bool take_has_allocated();

  // Sets how much more the thread may allocate before the peak of all live bytes may be passed.
  void allow(std::int64_t room_bytes) { most_live_bytes_ = live_bytes_ + room_bytes; }

  const StreamCounters* stream_counts(StreamIndex stream) const {
    const Stream* of = find_stream(stream);
    return of == nullptr ? nullptr : &of->counts;
  }
  template <class Visit>
  void each_stream_counts(Visit visit) const {
    for (const auto& of : streams_) {
      if (of != nullptr) visit(of->stream, of->counts);
    }
  }
  std::size_t cached_bytes() const;
  std::size_t bytes() const;

 private:
  struct Bin {
    BlockChain blocks;
    std::uint32_t granules = 0;  // size of each block
    std::uint32_t count = 0;
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

  struct alignas(kCacheLinePair) Stream {
    StreamKey key;
    StreamIndex stream{};
    ThreadCounters* thread_counts = nullptr;
    // Value of `*missed` after a miss: `stream`, or kUnknownStream while large blocks are cached.
    StreamIndex on_miss{};
    std::size_t medium_bytes = 0;  // sum of the cached medium blocks
    std::size_t other_bytes = 0;   // sum of all other cached blocks
    // Largest cached size; 0: no block is cached. Cached large blocks cannot be joined with their
    // free neighbours, so other requests get less suitable blocks, which costs new pages in the
    // end. Large blocks are therefore cached only if hardly any large request misses.
    std::size_t largest_cached = 0;
    std::uint64_t blocks_at_miss = 0;  // counts.blocks when large blocks were last flushed
    StreamCounters counts;
    // By size in granules: small objects, then medium blocks.
    std::array<Bin, kDirectBins> direct;
    std::array<std::uint64_t, 3> filled_medium{};  // a bit for each bin; the last word stays 0
    struct alignas(64) Set {                       // a cache line
      std::array<Bin, kWays> bins;
    };
    std::array<Set, kSets> runs;
    std::uint64_t filled_sets = 0;  // a bit for each set that may hold blocks

    std::size_t cached_bytes() const { return medium_bytes + other_bytes; }
    // Returns the first bin with blocks among the kNearBins bins from `index` on, or nullptr.
    Bin* find_near(std::size_t index) {
      const std::size_t word = index / 64;
      std::uint64_t near = filled_medium[word] >> index % 64;
      near |= filled_medium[word + 1] << 1 << (63 - index % 64);
      near &= (std::uint64_t{1} << kNearBins) - 1;
      if (near == 0) return nullptr;
      return &direct[index + static_cast<std::size_t>(std::countr_zero(near))];
    }
    void note_empty(const Bin& medium) {
      const auto index = static_cast<std::size_t>(&medium - direct.data());
      filled_medium[index / 64] &= ~(std::uint64_t{1} << index % 64);
    }
    Bin* find(std::size_t granules) {
      for (Bin& bin : runs[set_of(granules)].bins) {
        if (bin.granules == granules) return &bin;
      }
      return nullptr;
    }
    // Assigns an empty bin of its set to a size that has no bin. Returns nullptr if none is empty.
    Bin* claim(std::uint32_t granules);
  };

  static std::size_t set_of(std::size_t granules) { return fibonacci_slot<kSetBits>(granules); }
  static std::size_t slot_of(Facade facade, int device, StreamHandle stream) {
    std::uintptr_t bits = address_of(stream);
    return (bits ^ (bits >> 4) ^ (bits >> 9) ^ (static_cast<std::size_t>(device) << 2) ^
            static_cast<std::size_t>(facade)) %
           policy::kRecentStreams;
  }
  Stream* recent(Facade facade, int device, StreamHandle stream) const {
    Stream* of = recent_[slot_of(facade, device, stream)];
    bool same = of != nullptr && of->key.stream == stream && of->key.facade == facade &&
                of->key.device == device;
    return same ? of : nullptr;
  }
  // Returns nullptr if the stream is not open.
  [[gnu::always_inline]] Stream* find_stream(StreamIndex stream) const {
    const std::size_t index = position(stream);
    return index < streams_.size() ? streams_[index].get() : nullptr;
  }
  // Moves all but `keep` blocks to `*out`. Returns the bytes moved.
  static std::size_t empty(Bin* bin, std::uint32_t keep, BlockChain* out) noexcept;
  static Block* pop(Bin* bin) {
    --bin->count;
    return bin->blocks.pop();
  }
  static void push(Bin* bin, Block* block) {
    bin->blocks.push(block);
    ++bin->count;
  }

  static std::size_t known_slot(const void* address) {
    return fibonacci_slot<policy::kKnownBlockBits>(address_of(address));
  }
  [[gnu::always_inline]] bool allocated(Stream* of, Block& block, std::size_t requested_bytes,
                                        bool from_cache) {
    known_[known_slot(block.address())] = &block;
    const std::size_t size_bytes = block.size_bytes();
    live_bytes_ += static_cast<std::int64_t>(size_bytes);
    of->counts.allocated(size_bytes);
    bool within = of->thread_counts->allocated(size_class_of(size_bytes), size_bytes,
                                               requested_bytes, from_cache);
    return within && live_bytes_ <= most_live_bytes_ && (of->counts.blocks & look_mask_) != 0;
  }
  [[gnu::always_inline]] void freed(Stream* of, const Block& block) {
    const std::size_t size_bytes = block.size_bytes();
    live_bytes_ -= static_cast<std::int64_t>(size_bytes);
    of->counts.freed(size_bytes);
    of->thread_counts->freed(size_class_of(size_bytes), size_bytes, block.requested_bytes());
  }

  const std::size_t most_bytes_;
  const std::uint64_t look_mask_;
  std::array<Stream*, policy::kRecentStreams> recent_{};  // by slot_of(key)
  // The records of the blocks that the thread allocated last. An entry is valid for a free only if
  // the record still contains the freed address.
  std::array<Block*, std::size_t{1} << policy::kKnownBlockBits> known_{};
  std::vector<std::unique_ptr<Stream>> streams_;  // by position(StreamIndex)
  FigureStore::ThreadCounts thread_counts_;       // by facade and device
  std::int64_t live_bytes_ = 0;                   // sum of all counters
  std::int64_t most_live_bytes_ = 0;
  std::int64_t allocated_before_ = 0;  // blocks allocated until the last take_has_allocated()
};

// Holds the lock of a thread's own cache until the end of its scope.
class CacheOwnerGuard {
 public:
  explicit CacheOwnerGuard(ThreadCache& cache) : cache_(cache) { cache_.lock.lock_owner(); }
  ~CacheOwnerGuard() { cache_.lock.unlock_owner(); }
  CacheOwnerGuard(const CacheOwnerGuard&) = delete;
  CacheOwnerGuard& operator=(const CacheOwnerGuard&) = delete;

 private:
  ThreadCache& cache_;
};

[[gnu::always_inline]] inline Block* ThreadCache::allocate(Facade facade, int device,
                                                           StreamHandle stream,
                                                           std::size_t size_bytes, Outcome* outcome,
                                                           StreamIndex* missed) {
  Stream* of = recent(facade, device, stream);
  if (of == nullptr) [[unlikely]] {
    *missed = kUnknownStream;
    return nullptr;
  }
  Block* block = nullptr;
  const std::size_t index = (size_bytes - 1) / kGranule;  // wraps to a huge index for 0 bytes
  if (index < kSmallBins) {
    if (Bin& bin = of->direct[index]; bin.count != 0) {
      block = pop(&bin);
      of->other_bytes -= (index + 1) * kGranule;
    }
  } else if (index < kDirectBins) {
    if (Bin* bin = of->find_near(index); bin != nullptr) {
      block = pop(bin);
      of->medium_bytes -= block->size_bytes();
      if (bin->count == 0) of->note_empty(*bin);
    }
  } else if (size_bytes <= of->largest_cached) {
    Bin* bin = of->find(rounded_size(facade, size_bytes) / kGranule);
    if (bin != nullptr && bin->count != 0) {
      block = pop(bin);
      of->other_bytes -= block->size_bytes();
    }
  }
  if (block == nullptr) {
    *missed = of->on_miss;
    return nullptr;
  }
  block->use.resize(size_bytes);
  block->real.references = 1;
  block->set(BlockState::kLive);
  *outcome = allocated(of, *block, size_bytes, true) ? Outcome::kDone : Outcome::kDoneAtLimit;
  return block;
}

[[gnu::always_inline]] inline const StreamKey* ThreadCache::put(Block* block) {
  Stream* of = find_stream(stream_of(block->pool));
  std::size_t size_bytes = block->size_bytes();
  if (of == nullptr || of->cached_bytes() + size_bytes > most_bytes_) return nullptr;
  if (size_bytes > of->largest_cached) return nullptr;
  Bin* bin = nullptr;
  const std::size_t index = size_bytes / kGranule - 1;
  if (block->kind == BlockKind::kSmall) {
    bin = &of->direct[index];
    if (bin->count >= kMostSmall[index]) return nullptr;
    of->other_bytes += size_bytes;
  } else if (index < kDirectBins) {
    bin = &of->direct[index];
    if (bin->count >= policy::kBinBlocks) return nullptr;
    of->medium_bytes += size_bytes;
    of->filled_medium[index / 64] |= std::uint64_t{1} << index % 64;
  } else {
    // The bin is chosen by the requested size, because a loop requests the same size again. If the
    // request was aligned or the block a near fit, that size can be below kLargeBytes.
    const std::size_t for_bytes =
        block->kind == BlockKind::kPageGranular
            ? size_bytes
            : std::max(rounded_size(of->key.facade, block->requested_bytes()), kLargeBytes);
    const std::size_t granules = for_bytes / kGranule;
    bin = of->find(granules);
    if (bin == nullptr) [[unlikely]]
      bin = of->claim(static_cast<std::uint32_t>(granules));
    if (bin == nullptr || bin->count >= policy::kBinBlocks) return nullptr;
    of->other_bytes += size_bytes;
    of->filled_sets |= std::uint64_t{1} << set_of(granules);
  }
  freed(of, *block);
  block->real.references = 0;
  block->set(BlockState::kCached);
  push(bin, block);
  return &of->key;
}

[[gnu::always_inline]] inline const StreamKey* ThreadCache::pass_on(const Block& block) {
  Stream* of = find_stream(stream_of(block.pool));
  if (of == nullptr) return nullptr;
  freed(of, block);
  return &of->key;
}

}  // namespace uvm
