// Free blocks by size and address. A request gets the best fit of its own bin, which is at most an
// eighth too large. Where there is none, a request
//  * from kWholeBytes on gets the lowest of the blocks up to about half too large, else the lowest
//    of all larger ones: a place that is nearly right is not passed by, and beyond that what is
//    used stays together at the low end and large pieces stay whole. (Best fit throughout leaves
//    rests that nothing fits into; plain first fit cuts up what the largest requests will need.)
//  * below it gets the lowest of the blocks that are too small for the others, and a larger one
//    only where none of those fits.
//
// A bin per eighth of a power of two, in parts by size, each of which holds a FreeTree, mostly of a
// few blocks. The lowest block of each part, bin and octave of bins is at hand; which of several is
// the lowest cannot be foreseen, so it is found without branches. The tables, of about 25 KiB, are
// made with the first block; nothing else is allocated. Guarded by the allocator's lock.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>

#include <uvmalloc/allocator/block.hpp>
#include <uvmalloc/allocator/free_tree.hpp>
#include <uvmalloc/allocator/run_block_store.hpp>

namespace uvm {

class FreeIndex {
 public:
  // Of blocks that have their records in that store.
  explicit FreeIndex(const RunBlockStore& blocks) : blocks_(&blocks) {}

  // The next insert() makes nothing.
  void prepare() {
    if (tables_ == nullptr) [[unlikely]]
      tables_ = std::make_unique<Tables>();
  }

  [[gnu::always_inline]] void insert(RunBlock* block) {
    prepare();
    Tables& in = *tables_;
    const std::size_t part = part_of(block->size_bytes());
    const std::size_t bin = part / kParts;
    const std::size_t octave = bin / kSteps;
    const BlockKey key = key_of(block);
    in.parts[part].insert(*blocks_, block);
    in.lowest_of_part[part] = std::min(in.lowest_of_part[part], key);
    in.lowest_of_bin[bin] = std::min(in.lowest_of_bin[bin], key);
    in.lowest_of_octave[octave] = std::min(in.lowest_of_octave[octave], key);
    in.filled[octave] |= bit(part % kPartsOfOctave);
    octaves_ |= bit(octave);
    bytes_ += block->size_bytes();
  }

  // The block must be in it, at the address and with the size it was inserted with.
  [[gnu::always_inline]] void erase(RunBlock* block) {
    Tables& in = *tables_;
    const std::size_t part = part_of(block->size_bytes());
    const std::size_t bin = part / kParts;
    const std::size_t octave = bin / kSteps;
    in.parts[part].erase(*blocks_, block);
    bytes_ -= block->size_bytes();
    if (in.parts[part].empty()) {
      in.lowest_of_part[part] = kNoBlock;
      in.filled[octave] &= ~bit(part % kPartsOfOctave);
      octaves_ &= ~(std::uint64_t{in.filled[octave] == 0} << octave);
    } else {
      in.lowest_of_part[part] = in.parts[part].lowest(*blocks_);
    }
    in.lowest_of_bin[bin] = lowest_of<kParts>(&in.lowest_of_part[bin * kParts]);
    in.lowest_of_octave[octave] = lowest_of<kSteps>(&in.lowest_of_bin[octave * kSteps]);
  }

  // The block for a request of `size_bytes`; nullptr: none is as large.
  RunBlock* fit(std::size_t size_bytes) const {
    if (size_bytes > bytes_ || size_bytes > RealStorage::kMostSizeBytes) return nullptr;
    const Tables& in = *tables_;
    const std::size_t part = part_of(size_bytes);
    const std::size_t bin = part / kParts;
    // What is left of its bin, of which the first part may hold smaller blocks too.
    const std::uint64_t rest_of_bin = bit(kParts - part % kParts) - 1;
    std::uint64_t filled =
        in.filled[part / kPartsOfOctave] >> (part % kPartsOfOctave) & rest_of_bin;
    for (; filled != 0; filled &= filled - 1) {
      const FreeTree& blocks = in.parts[part + first_bit(filled)];
      if (RunBlock* close = blocks.best_fit(*blocks_, size_bytes)) return close;
    }
    if (size_bytes >= kWholeBytes) {
      const BlockKey near = lowest_of<kCloseBins>(&in.lowest_of_bin[bin + 1]);
      return block_of(near != kNoBlock ? near : lowest_from(bin + 1 + kCloseBins, kOctaves));
    }
    const std::size_t end = part_of(kWholeBytes) / kPartsOfOctave;
    const BlockKey near = lowest_from(bin + 1, end);
    return block_of(near != kNoBlock ? near : lowest_from(end * kSteps, kOctaves));
  }

  // All of them by size, then by address. nullptr: there is none, or no further one.
  RunBlock* smallest() const { return smallest_of(0); }
  RunBlock* smallest_of(std::size_t size_bytes) const {
    if (empty() || size_bytes > RealStorage::kMostSizeBytes) return nullptr;
    const std::size_t part = part_of(size_bytes);
    RunBlock* found = tables_->parts[part].best_fit(*blocks_, size_bytes);
    return found != nullptr ? found : first_from(part + 1);
  }
  RunBlock* after(const RunBlock* block) const {
    const std::size_t part = part_of(block->size_bytes());
    RunBlock* next = tables_->parts[part].after(*blocks_, block);
    return next != nullptr ? next : first_from(part + 1);
  }
  const RunBlock* largest() const {
    if (empty()) return nullptr;
    const std::size_t octave = last_bit(octaves_);
    const std::size_t part = octave * kPartsOfOctave + last_bit(tables_->filled[octave]);
    return tables_->parts[part].largest(*blocks_);
  }

  // The tables, where there is nothing to be found in them.
  void drop_empty_tables() {
    if (empty()) tables_.reset();
  }

  std::size_t free_bytes() const { return bytes_; }
  bool empty() const { return bytes_ == 0; }
  std::size_t table_bytes() const { return tables_ == nullptr ? 0 : sizeof(Tables); }

 private:
  // Eighths of powers of two, from one granule up, each in eight; sizes have 32 bits in granules.
  static constexpr std::size_t kSteps = 8;
  static constexpr std::size_t kParts = 8;
  static constexpr std::size_t kPartsOfOctave = kSteps * kParts;
  static constexpr std::size_t kOctaves = 30;
  static constexpr std::size_t kBins = kOctaves * kSteps;
  static constexpr std::size_t kCloseBins = 4;

  [[gnu::always_inline]] static std::size_t part_of(std::size_t size_bytes) {
    const std::size_t granules = size_bytes / kGranule;
    if (granules < kSteps) return granules * kParts;
    // granules >> octave is 8..15
    const auto octave = static_cast<std::size_t>(std::bit_width(granules)) - 4;
    return octave * kPartsOfOctave + (granules * kParts >> octave);
  }
  static std::uint64_t bit(std::size_t number) { return std::uint64_t{1} << number; }
  static std::size_t first_bit(std::uint64_t bits) {
    return static_cast<std::size_t>(std::countr_zero(bits));
  }
  static std::size_t last_bit(std::uint64_t bits) {
    return static_cast<std::size_t>(std::bit_width(bits)) - 1;
  }

  template <std::size_t kCount>
  [[gnu::always_inline]] static BlockKey lowest_of(const BlockKey* keys) {
    BlockKey lowest = keys[0];
#pragma GCC unroll 8
    for (std::size_t i = 1; i < kCount; ++i) lowest = std::min(lowest, keys[i]);
    return lowest;
  }
  // Of the bins from `first` up to the octave `end`.
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
  RunBlock* first_from(std::size_t part) const {
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
  RunBlock* block_of(BlockKey key) const {
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

  const RunBlockStore* blocks_;
  std::unique_ptr<Tables> tables_;
  std::uint64_t octaves_ = 0;  // a bit for each that has filled parts
  std::size_t bytes_ = 0;
};

}  // namespace uvm
