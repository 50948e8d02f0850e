// Finds free blocks by size and address. A request gets the best fit of its own bin, which is at
// most an eighth too large. If the bin has no block that fits:
//  * A request from kPageGranularBytes on gets, among the blocks up to about 50 % larger than the
//    request, the one at the lowest address. If there is none, it gets the lowest larger block. * A
//    smaller request gets the lowest of all blocks in larger bins below kPageGranularBytes. If
//    there is none, it gets the lowest larger block.
// So requests get blocks of nearly their size, blocks in use stay together at low addresses, and
// large free blocks stay in one piece. (Best fit everywhere would leave rests that no request fits
// into. First fit would cut up the blocks that the largest requests will need.)
//
// There is a bin for each eighth of an octave (a power of two). A bin has parts by size, and each
// part has a FreeTree, which usually has few blocks. The lowest block of each part, bin and octave
// is stored, and the lowest of several is found without branches, which would be unpredictable. The
// newest block stays outside the tables until the next one is inserted, because in training steps
// 30 to 60 % of the requests are cut from the newest block, and 17 to 33 % of the freed blocks are
// joined with it. The first insertion makes the tables, about 25 KiB; nothing else is allocated.
// Guarded by the state lock.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "allocator/heap/block.hpp"
#include "allocator/heap/free_tree.hpp"
#include "allocator/heap/page_block_store.hpp"

namespace uvm {

class FreeIndex {
 public:
  // `blocks` owns the records of all blocks in the index.
  explicit FreeIndex(const PageBlockStore& blocks) : blocks_(&blocks) {}

  // Makes the tables, so that insert() allocates nothing.
  void prepare() {
    if (tables_ == nullptr) [[unlikely]]
      tables_ = std::make_unique<Tables>();
  }

  [[gnu::always_inline]] void insert(PageBlock* block) {
    prepare();
    bytes_ += block->size_bytes();
    const Latest before = latest_;
    latest_ = {block, block->size_bytes(), part_of(block->size_bytes()), key_of(block)};
    if (before.block != nullptr) insert_in_tables(before);
  }

  // The block must be in the index, and have the address and size that it was inserted with.
  [[gnu::always_inline]] void erase(PageBlock* block) {
    bytes_ -= block->size_bytes();
    if (block == latest_.block) {
      latest_ = {};
    } else {
      erase_from_tables(block);
    }
  }

  // Returns the block for a request of `size_bytes`, or nullptr if no block is large enough.
  PageBlock* fit(std::size_t size_bytes) const {
    if (size_bytes > bytes_ || size_bytes > RealStorage::kMostSizeBytes) return nullptr;
    const Tables& in = *tables_;
    const std::size_t part = part_of(size_bytes);
    const std::size_t bin = part / kParts;
    // All bits are set if the newest block is too small; this value sorts after every bin and key.
    const std::uint64_t too_small = all_bits_if(latest_.size_bytes < size_bytes);
    const std::size_t latest_bin = latest_.part / kParts | too_small;
    const BlockKey latest = latest_.key | too_small;
    // The parts of the bin from the request's own part on. That part may hold smaller blocks too.
    const std::uint64_t rest_of_bin = bit(kParts - part % kParts) - 1;
    std::uint64_t filled =
        in.filled[part / kPartsOfOctave] >> (part % kPartsOfOctave) & rest_of_bin;
    for (; filled != 0; filled &= filled - 1) {
      const FreeTree& blocks = in.parts[part + first_bit(filled)];
      if (PageBlock* close = blocks.best_fit(*blocks_, size_bytes)) {
        return latest_bin == bin ? first_of(close, latest_.block) : close;
      }
    }
    if (latest_bin == bin) return latest_.block;
    const std::size_t small_end = part_of(kPageGranularBytes) / kPartsOfOctave;
    const bool is_large = size_bytes >= kPageGranularBytes;
    const std::size_t near_end = is_large ? bin + 1 + kCloseBins : small_end * kSteps;
    BlockKey near = is_large ? lowest_of<kCloseBins>(&in.lowest_of_bin[bin + 1])
                             : lowest_from(bin + 1, small_end);
    near = std::min(near, latest | all_bits_if(latest_bin >= near_end));
    return block_of(near != kNoBlock ? near : std::min(latest, lowest_from(near_end, kOctaves)));
  }

  // Visit all blocks, ordered by size and then by address. Return nullptr at the end.
  PageBlock* smallest() const { return smallest_of(0); }
  PageBlock* smallest_of(std::size_t size_bytes) const {
    if (empty() || size_bytes > RealStorage::kMostSizeBytes) return nullptr;
    const std::size_t part = part_of(size_bytes);
    PageBlock* found = tables_->parts[part].best_fit(*blocks_, size_bytes);
    if (found == nullptr) found = first_from(part + 1);
    const bool fits = latest_.block != nullptr && latest_.size_bytes >= size_bytes;
    return fits ? first_of(found, latest_.block) : found;
  }
  PageBlock* after(const PageBlock* block) const {
    const std::size_t part = part_of(block->size_bytes());
    PageBlock* next = tables_->parts[part].after(*blocks_, block);
    if (next == nullptr) next = first_from(part + 1);
    const bool is_later = latest_.block != nullptr && FreeTree::is_before(block, latest_.block);
    return is_later ? first_of(next, latest_.block) : next;
  }
  const PageBlock* largest() const {
    if (octaves_ == 0) return latest_.block;
    const std::size_t octave = last_bit(octaves_);
    const std::size_t part = octave * kPartsOfOctave + last_bit(tables_->filled[octave]);
    const PageBlock* found = tables_->parts[part].largest(*blocks_);
    return found->size_bytes() < latest_.size_bytes ? latest_.block : found;
  }

  void drop_empty_tables() {
    if (empty()) tables_.reset();
  }

  std::size_t free_bytes() const { return bytes_; }
  bool empty() const { return bytes_ == 0; }
  std::size_t table_bytes() const { return tables_ == nullptr ? 0 : sizeof(Tables); }

 private:
  // A bin is an eighth of a power of two, and has eight parts. Sizes in granules have 32 bits.
  static constexpr std::size_t kSteps = policy::kBinsOfOctave;
  static constexpr std::size_t kParts = 8;
  static constexpr std::size_t kPartsOfOctave = kSteps * kParts;
  static constexpr std::size_t kOctaves = 30;
  static constexpr std::size_t kBins = kOctaves * kSteps;
  static constexpr std::size_t kCloseBins = policy::kCloseBins;

  // The newest block, with the values that fit() compares.
  struct Latest {
    PageBlock* block = nullptr;
    std::size_t size_bytes = 0;
    std::size_t part = 0;
    BlockKey key = kNoBlock;
  };

  [[gnu::always_inline]] void insert_in_tables(const Latest& of) {
    Tables& in = *tables_;
    const std::size_t bin = of.part / kParts;
    const std::size_t octave = bin / kSteps;
    in.parts[of.part].insert(*blocks_, of.block);
    in.lowest_of_part[of.part] = std::min(in.lowest_of_part[of.part], of.key);
    in.lowest_of_bin[bin] = std::min(in.lowest_of_bin[bin], of.key);
    in.lowest_of_octave[octave] = std::min(in.lowest_of_octave[octave], of.key);
    in.filled[octave] |= bit(of.part % kPartsOfOctave);
    octaves_ |= bit(octave);
  }
  [[gnu::always_inline]] void erase_from_tables(PageBlock* block) {
    Tables& in = *tables_;
    const std::size_t part = part_of(block->size_bytes());
    const std::size_t bin = part / kParts;
    const std::size_t octave = bin / kSteps;
    in.parts[part].erase(*blocks_, block);
    in.lowest_of_part[part] = in.parts[part].lowest(*blocks_);
    in.filled[octave] &= ~(std::uint64_t{in.parts[part].empty()} << (part % kPartsOfOctave));
    octaves_ &= ~(std::uint64_t{in.filled[octave] == 0} << octave);
    in.lowest_of_bin[bin] = lowest_of<kParts>(&in.lowest_of_part[bin * kParts]);
    in.lowest_of_octave[octave] = lowest_of<kSteps>(&in.lowest_of_bin[octave * kSteps]);
  }

  [[gnu::always_inline]] static std::size_t part_of(std::size_t size_bytes) {
    const std::size_t granules = size_bytes / kGranule;
    if (granules < kSteps) return granules * kParts;
    // granules >> octave is 8 to 15
    const auto octave = static_cast<std::size_t>(std::bit_width(granules)) - 4;
    return octave * kPartsOfOctave + (granules * kParts >> octave);
  }
  static std::uint64_t bit(std::size_t number) { return std::uint64_t{1} << number; }
  static std::uint64_t all_bits_if(bool holds) { return 0 - std::uint64_t{holds}; }
  static std::size_t first_bit(std::uint64_t bits) {
    return static_cast<std::size_t>(std::countr_zero(bits));
  }
  static std::size_t last_bit(std::uint64_t bits) {
    return static_cast<std::size_t>(std::bit_width(bits)) - 1;
  }

  // Returns the first of two blocks by size, then by address. `block` may be nullptr.
  static PageBlock* first_of(PageBlock* block, PageBlock* other) {
    return block == nullptr || FreeTree::is_before(other, block) ? other : block;
  }
  template <std::size_t kCount>
  [[gnu::always_inline]] static BlockKey lowest_of(const BlockKey* keys) {
    if constexpr (kCount == 1) {
      return keys[0];
    } else {
      return std::min(lowest_of<kCount / 2>(keys), lowest_of<kCount / 2>(keys + kCount / 2));
    }
  }
  // Returns the lowest key in the bins from `first` up to the octave `end`, which is excluded.
  BlockKey lowest_from(std::size_t first, std::size_t end) const {
    std::size_t octave = first / kSteps;
    if (octave >= end) return kNoBlock;
    BlockKey lowest = kNoBlock;
#pragma GCC unroll 8
    for (std::size_t bin = 0; bin < kSteps; ++bin) {
      const BlockKey others = bin < first % kSteps ? kNoBlock : 0;
      lowest = std::min(lowest, tables_->lowest_of_bin[octave * kSteps + bin] | others);
    }
    end = std::min(end, last_bit(octaves_ | 1) + 1);
    while (++octave < end) lowest = std::min(lowest, tables_->lowest_of_octave[octave]);
    return lowest;
  }
  PageBlock* first_from(std::size_t part) const {
    std::size_t octave = part / kPartsOfOctave;
    if (octave >= kOctaves) return nullptr;
    std::uint64_t filled = tables_->filled[octave] & (~std::uint64_t{0} << (part % kPartsOfOctave));
    if (filled == 0) {
      const std::uint64_t octaves = octaves_ & (~std::uint64_t{1} << octave);
      if (octaves == 0) return nullptr;
      octave = first_bit(octaves);
      filled = tables_->filled[octave];
    }
    return tables_->parts[octave * kPartsOfOctave + first_bit(filled)].best_fit(*blocks_, 0);
  }
  PageBlock* block_of(BlockKey key) const {
    return key == kNoBlock ? nullptr : blocks_->at(static_cast<std::uint32_t>(key % kBlockKeys));
  }

  struct Tables {
    Tables() {
      lowest_of_part.fill(kNoBlock);
      lowest_of_bin.fill(kNoBlock);
      lowest_of_octave.fill(kNoBlock);
    }
    std::array<FreeTree, kBins * kParts> parts;
    std::array<BlockKey, kBins * kParts> lowest_of_part;
    std::array<BlockKey, kBins + kCloseBins> lowest_of_bin;
    std::array<BlockKey, kOctaves> lowest_of_octave;
    std::array<std::uint64_t, kOctaves> filled{};  // a bit for each part
  };

  const PageBlockStore* blocks_;
  std::unique_ptr<Tables> tables_;
  std::uint64_t octaves_ = 0;  // a bit for each octave that has filled parts
  std::size_t bytes_ = 0;
  Latest latest_;
};

}  // namespace uvm
