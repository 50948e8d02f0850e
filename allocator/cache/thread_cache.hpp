// Blocks that one thread has freed and will likely ask for again: by stream and rounded size, last
// in, first out. A hit takes no lock that another thread takes in normal operation (OwnerLock),
// calls nothing and touches two lines of the block's record. What a free must look at closely never
// gets in (Block::plain); what leaves goes to the pools.
//
// A cache belongs to its thread; others may flush it and read its tallies while they hold its lock.
// What it writes to shares no pair of cache lines with anything of other threads.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <uvmalloc/allocator/base/cache_lines.hpp>
#include <uvmalloc/allocator/base/fibonacci_hash.hpp>
#include <uvmalloc/allocator/base/owner_lock.hpp>
#include <uvmalloc/allocator/counters/figure_store.hpp>
#include <uvmalloc/allocator/counters/tally.hpp>
#include <uvmalloc/allocator/heap/block_chain.hpp>
#include <uvmalloc/allocator/heap/block_pools.hpp>

namespace uvm {

// What one thread has allocated from one stream's pools and freed into them.
struct StreamTally {
  std::int64_t live_bytes = 0;  // below zero where others' blocks are freed here
  std::int64_t peak_bytes = 0;
  std::uint64_t blocks = 0;  // allocated since the start
  std::uint64_t bytes = 0;

  void allocated(std::size_t size_bytes) {
    live_bytes += static_cast<std::int64_t>(size_bytes);
    peak_bytes = std::max(peak_bytes, live_bytes);
    bytes += size_bytes;
    ++blocks;
  }
  void freed(std::size_t size_bytes) { live_bytes -= static_cast<std::int64_t>(size_bytes); }
  // Takes over what another thread has counted; its peak is taken to be at the same time.
  void absorb(const StreamTally& other) {
    live_bytes += other.live_bytes;
    peak_bytes += other.peak_bytes;
    blocks += other.blocks;
    bytes += other.bytes;
  }
};

class alignas(kCacheLinePair) ThreadCache {
 public:
  // `most_bytes`: what it may hold for one stream. `requests_per_look`: every so many of a stream
  // that are served are kDoneAtLimit, a power of two; 0: none for that alone.
  ThreadCache(FigureStore::Tallies tallies, std::size_t most_bytes, std::uint64_t requests_per_look)
      : most_bytes_(most_bytes), look_mask_(requests_per_look - 1), tallies_(std::move(tallies)) {}
  ThreadCache(const ThreadCache&) = delete;
  ThreadCache& operator=(const ThreadCache&) = delete;

  OwnerLock lock;

  // What the hot paths tell their caller, beside the block.
  enum class Outcome : std::uint8_t {
    kMiss,  // nothing was done
    kDone,
    kDoneAtLimit,  // and a peak may have been passed (PeakBook::add_up), or it is time to look up
  };

  // ---- by the owner, inside the lock

  // What a request that was not served here is to try next: the first pool of its stream.
  static constexpr PoolIndex kUnknownPools = ~PoolIndex{0};

  // The record of a block that this thread was given at `address`; nullptr: it does not remember.
  // May be called outside the lock.
  Block* known_at(const void* address) const {
    Block* block = known_[known_slot(address)];
    return block != nullptr && block->starts_at(address) ? block : nullptr;
  }

  // A block of that size for a request; nullptr: there is none, and `*pools` is the first pool of
  // its stream, or kUnknownPools where that was not used of late or keeps large blocks, which are
  // to be seen to first (take_out_large()).
  Block* allocate(Facade facade, int device, StreamHandle stream, std::size_t size_bytes,
                  Outcome* outcome, PoolIndex* pools);
  // A block that its caller gives back: live and plain. Returns whose it is; nullptr: there is no
  // room.
  const StreamKey* put(Block* block);
  // Counts one for which there was no room and which goes to its pool. Returns whose it is;
  // nullptr: its stream is not open.
  const StreamKey* pass_on(const Block& block);

  // From now on blocks of these pools may be put in. `first` is the index of the stream's first
  // pool, `place` that of its facade and device among the tallies.
  void open(const StreamKey& key, PoolIndex first, std::size_t place);
  bool is_open(PoolIndex first) const { return stream_of(first) != nullptr; }
  // Whether large blocks of these pools are kept from now on.
  void keep_large(PoolIndex first, bool keep);
  // For a large request of a stream that was not served here: `*out` gets the large blocks that are
  // kept, where it or others may fit better. False: that is so often needed that none should be
  // kept.
  bool take_out_large(PoolIndex first, BlockChain* out) noexcept;
  // What is kept of these pools and would stand in the way of larger blocks for good: the large
  // ones, and the medium ones where they are more than so many bytes.
  void tidy(PoolIndex first, std::size_t most_medium_bytes, BlockChain* out) noexcept;
  // No more of these pools is kept or found here; `*out` gets what was, as by flush().
  void close(PoolIndex first, BlockChain* out) noexcept;
  // The pools are another stream's from now on: what is kept of them may be used for that, and it
  // is found here once it was opened.
  void rename(PoolIndex first, const StreamKey& key);
  // A block just taken from the arena, as spare.
  void put_spare(Block* block);

  Tally& tally(std::size_t place) { return tallies_[place]; }

  // Counts what did not come from, or go into, the cache, and remembers what was allocated. The
  // stream must be open; false: a peak may have been passed.
  [[gnu::always_inline]] bool count_allocated(Block& block, bool from_cache) {
    return allocated(streams_[block.pool / kPoolsPerStream].get(), block, block.requested_bytes(),
                     from_cache);
  }
  void count_freed(const Block& block) {
    freed(streams_[block.pool / kPoolsPerStream].get(), block);
  }

  // ---- by whoever holds the lock

  // Takes out the blocks of one stream's pools (by its first): small objects, medium blocks, large
  // ones (from kLargeBytes on), or the latter two; or all.
  enum class Kept : std::uint8_t { kSmall, kMedium, kLarge, kRuns };
  void flush(PoolIndex first, Kept kept, BlockChain* out) noexcept;
  void flush_all(BlockChain* out) noexcept;
  // Some small objects of a block's size, when its bin is full.
  void flush_some(const Block& like, BlockChain* out) noexcept;

  // Whether the thread has allocated since it was last asked.
  bool take_has_allocated();

  // Sets how much more the thread may allocate before the peak of all live bytes may be passed.
  void allow(std::int64_t room_bytes) { most_live_bytes_ = live_bytes_ + room_bytes; }

  const StreamTally* stream_tally(PoolIndex first) const {
    const Stream* of = stream_of(first);
    return of == nullptr ? nullptr : &of->counts;
  }
  template <class Visit>
  void each_stream_tally(Visit visit) const {
    for (const auto& of : streams_) {
      if (of != nullptr) visit(of->first_pool, of->counts);
    }
  }
  std::size_t cached_bytes() const;
  std::size_t bytes() const;

 private:
  struct Bin {
    BlockChain blocks;
    std::uint32_t granules = 0;  // of each block
    std::uint32_t count = 0;
  };
  static constexpr std::size_t kSmallBins = kSmallBytes / kGranule;
  // What is smaller than large blocks has a bin for each size.
  static constexpr std::size_t kDirectBins = kLargeBytes / kGranule - 1;
  // A medium request may get a block that is larger by so many granules, as from a pool.
  static constexpr std::size_t kNearBins = BlockPools::kSmallestShared / kGranule;
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
    PoolIndex first_pool = 0;
    Tally* tally = nullptr;
    PoolIndex on_miss = 0;  // what a request that is not served is told: first_pool, if no large
                            // blocks are kept
    std::size_t medium_bytes = 0;  // of medium blocks that are kept
    std::size_t other_bytes = 0;   // of all others
    // Large blocks that are kept cannot be joined with their neighbours, and others are cut from
    // worse places meanwhile, which costs new pages in the end: they are kept only where hardly any
    // request for a large one finds none.
    std::size_t largest_kept = 0;
    std::uint64_t blocks_at_miss = 0;  // counts.blocks when large blocks were last taken out
    StreamTally counts;
    // By granules: of small objects, then of medium blocks.
    std::array<Bin, kDirectBins> direct;
    std::array<std::uint64_t, 3> filled_medium{};  // a bit for each; the last word has none
    struct alignas(64) Set {                       // a line of the cache
      std::array<Bin, kWays> bins;
    };
    std::array<Set, kSets> runs;
    std::uint64_t filled_sets = 0;  // a bit for each that may hold blocks

    std::size_t cached_bytes() const { return medium_bytes + other_bytes; }
    // The first from `index` on that has blocks for a request of so many granules less one;
    // nullptr: there is none near it.
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
    // An empty bin, from now on for that size, which has none; nullptr: all are taken.
    Bin* claim(std::uint32_t granules);
  };

  static std::size_t set_of(std::size_t granules) { return fibonacci_slot<kSetBits>(granules); }
  static std::size_t slot_of(Facade facade, int device, StreamHandle stream) {
    std::uintptr_t bits = address_of(stream);
    return (bits ^ (bits >> 4) ^ (bits >> 9) ^ (static_cast<std::size_t>(device) << 2) ^
            static_cast<std::size_t>(facade)) %
           kSlots;
  }
  Stream* recent(Facade facade, int device, StreamHandle stream) const {
    Stream* of = recent_[slot_of(facade, device, stream)];
    bool same = of != nullptr && of->key.stream == stream && of->key.facade == facade &&
                of->key.device == device;
    return same ? of : nullptr;
  }
  // By any of its pools; nullptr: it is not open.
  [[gnu::always_inline]] Stream* stream_of(PoolIndex pool) const {
    const std::size_t index = pool / kPoolsPerStream;
    return index < streams_.size() ? streams_[index].get() : nullptr;
  }
  // Takes out all but so many; returns their bytes.
  static std::size_t empty(Bin* bin, std::uint32_t keep, BlockChain* out) noexcept;
  static Block* pop(Bin* bin) {
    --bin->count;
    return bin->blocks.pop();
  }
  static void push(Bin* bin, Block* block) {
    bin->blocks.push(block);
    ++bin->count;
  }

  static constexpr std::size_t kSlots = 16;

  static std::size_t known_slot(const void* address) {
    return fibonacci_slot<kKnownBits>(address_of(address));
  }
  [[gnu::always_inline]] bool allocated(Stream* of, Block& block, std::size_t requested_bytes,
                                        bool from_cache) {
    known_[known_slot(block.address())] = &block;
    const std::size_t size_bytes = block.size_bytes();
    live_bytes_ += static_cast<std::int64_t>(size_bytes);
    of->counts.allocated(size_bytes);
    bool within =
        of->tally->allocated(size_class_of(size_bytes), size_bytes, requested_bytes, from_cache);
    return within && live_bytes_ <= most_live_bytes_ && (of->counts.blocks & look_mask_) != 0;
  }
  [[gnu::always_inline]] void freed(Stream* of, const Block& block) {
    const std::size_t size_bytes = block.size_bytes();
    live_bytes_ -= static_cast<std::int64_t>(size_bytes);
    of->counts.freed(size_bytes);
    of->tally->freed(size_class_of(size_bytes), size_bytes, block.requested_bytes());
  }

  const std::size_t most_bytes_;
  const std::uint64_t look_mask_;
  std::array<Stream*, kSlots> recent_{};  // by slot_of(key)
  // The records of blocks it was given last, so that a free need not look them up. What is there
  // may be out of date: it is right if the record still says that the block starts there. Of a
  // thousand live blocks, four fifths are found here when they are freed.
  static constexpr unsigned kKnownBits = 12;
  std::array<Block*, std::size_t{1} << kKnownBits> known_{};
  std::vector<std::unique_ptr<Stream>> streams_;  // by first pool / kPoolsPerStream
  FigureStore::Tallies tallies_;                  // by facade and device
  std::int64_t live_bytes_ = 0;                   // of all places
  std::int64_t most_live_bytes_ = 0;
  std::int64_t allocated_before_ = 0;  // blocks, by take_has_allocated()
};

// The owner inside its cache, until the end of the scope.
class InsideCache {
 public:
  explicit InsideCache(ThreadCache& cache) : cache_(cache) { cache_.lock.enter(); }
  ~InsideCache() { cache_.lock.leave(); }
  InsideCache(const InsideCache&) = delete;
  InsideCache& operator=(const InsideCache&) = delete;

 private:
  ThreadCache& cache_;
};

[[gnu::always_inline]] inline Block* ThreadCache::allocate(Facade facade, int device,
                                                           StreamHandle stream,
                                                           std::size_t size_bytes, Outcome* outcome,
                                                           PoolIndex* pools) {
  Stream* of = recent(facade, device, stream);
  if (of == nullptr) [[unlikely]] {
    *pools = kUnknownPools;
    return nullptr;
  }
  Block* block = nullptr;
  const std::size_t index = (size_bytes - 1) / kGranule;  // huge where it is of no bytes
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
  } else if (size_bytes <= of->largest_kept) {
    Bin* bin = of->find(rounded_size(facade, size_bytes) / kGranule);
    if (bin != nullptr && bin->count != 0) {
      block = pop(bin);
      of->other_bytes -= block->size_bytes();
    }
  }
  if (block == nullptr) {
    *pools = of->on_miss;
    return nullptr;
  }
  block->use.resize(size_bytes);
  block->real.references = 1;
  block->set(BlockState::kLive);
  *outcome = allocated(of, *block, size_bytes, true) ? Outcome::kDone : Outcome::kDoneAtLimit;
  return block;
}

[[gnu::always_inline]] inline const StreamKey* ThreadCache::put(Block* block) {
  Stream* of = stream_of(block->pool);
  std::size_t size_bytes = block->size_bytes();
  if (of == nullptr || of->cached_bytes() + size_bytes > most_bytes_) return nullptr;
  if (size_bytes > of->largest_kept) return nullptr;
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
    // By what was asked for, which the block may exceed: a loop's next request finds it again.
    // (Less than a large block, and than whole pages, is asked for at an alignment, or where the
    // block was a little larger.)
    const std::size_t for_bytes =
        block->kind == BlockKind::kWhole
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
  Stream* of = stream_of(block.pool);
  if (of == nullptr) return nullptr;
  freed(of, block);
  return &of->key;
}

}  // namespace uvm
