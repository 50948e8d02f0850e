// Free blocks by size and address. A request gets the best fit of its own bin, which is at most an
// eighth too large. Where there is none, a request
//  * from kWholeBytes on gets the lowest of the blocks up to about half too large, else the lowest
//    of all larger ones: a place that is nearly right is not passed by, and beyond that what is
//    used stays together at the low end and large pieces stay whole. (Best fit throughout leaves
//    rests that nothing fits into; plain first fit cuts up what the largest requests will need.)
//  * below it gets the lowest of the blocks that are too small for the others, and a larger one
//    only where none of those fits.
//
// A bin per eighth of a power of two holds a FreeTree; the lowest address of each bin, and of each
// octave of bins, is at hand. Nothing is allocated. Guarded by the allocator's lock.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include <uvmalloc/allocator/block.hpp>
#include <uvmalloc/allocator/free_tree.hpp>

namespace uvm {

class FreeIndex {
 public:
  FreeIndex() {
    lowest_.fill(FreeTree::kNone);
    lowest_of_octave_.fill(FreeTree::kNone);
  }

  void insert(RunBlock* block) {
    std::size_t bin = bin_of(block->size_bytes());
    std::size_t octave = bin / kSteps;
    bins_[bin].insert(block);
    lowest_[bin] = bins_[bin].lowest_address();
    lowest_of_octave_[octave] = std::min(lowest_of_octave_[octave], lowest_[bin]);
    filled_[octave] = static_cast<std::uint8_t>(filled_[octave] | 1u << (bin % kSteps));
    octaves_ |= std::uint64_t{1} << octave;
    bytes_ += block->size_bytes();
  }

  // The block must be in it, at the address and with the size it was inserted with.
  void erase(RunBlock* block) {
    std::size_t bin = bin_of(block->size_bytes());
    bins_[bin].erase(block);
    bytes_ -= block->size_bytes();
    const std::uintptr_t address = address_of(block->address());
    if (lowest_[bin] != address) return;
    std::size_t octave = bin / kSteps;
    lowest_[bin] = bins_[bin].lowest_address();
    if (bins_[bin].empty()) {
      filled_[octave] = static_cast<std::uint8_t>(filled_[octave] & ~(1u << (bin % kSteps)));
      if (filled_[octave] == 0) octaves_ &= ~(std::uint64_t{1} << octave);
    }
    if (lowest_of_octave_[octave] != address) return;
    std::uintptr_t lowest = FreeTree::kNone;
    for (unsigned left = filled_[octave]; left != 0; left &= left - 1) {
      lowest = std::min(lowest, lowest_[octave * kSteps + first_bit(left)]);
    }
    lowest_of_octave_[octave] = lowest;
  }

  // The block for a request of `size_bytes`; nullptr: none is as large.
  RunBlock* fit(std::size_t size_bytes) const {
    const std::size_t bin = bin_of(size_bytes);
    if (RunBlock* close = bins_[bin].best_fit(size_bytes)) return close;
    const bool is_large = size_bytes >= kWholeBytes;
    const std::size_t end = is_large ? bin + 1 + kCloseBins : bin_of(kWholeBytes);
    std::size_t found = is_large ? lowest_of_close(bin + 1) : lowest_bin(bin + 1, end);
    if (found == kBins) found = lowest_bin(end, kBins);
    return found == kBins ? nullptr : bins_[found].lowest();
  }

  // All of them by size, then by address. nullptr: there is none, or no further one.
  RunBlock* smallest() const { return smallest_of(0); }
  RunBlock* smallest_of(std::size_t size_bytes) const {
    std::size_t bin = bin_of(size_bytes);
    RunBlock* found = bins_[bin].best_fit(size_bytes);
    return found != nullptr ? found : first_from(bin + 1);
  }
  RunBlock* after(const RunBlock* block) const {
    std::size_t bin = bin_of(block->size_bytes());
    RunBlock* next = bins_[bin].after(block);
    return next != nullptr ? next : first_from(bin + 1);
  }
  const RunBlock* largest() const {
    for (std::size_t bin = kBins; bin-- > 0;) {
      if (!bins_[bin].empty()) return bins_[bin].largest();
    }
    return nullptr;
  }

  std::size_t free_bytes() const { return bytes_; }
  bool empty() const { return bytes_ == 0; }

 private:
  // Eighths of powers of two, from one granule up; sizes from the last bin's on share it.
  static constexpr std::size_t kSteps = 8;
  static constexpr std::size_t kOctaves = 35;
  static constexpr std::size_t kBins = kOctaves * kSteps;
  static constexpr std::size_t kCloseBins = 4;

  static std::size_t bin_of(std::size_t size_bytes) {
    std::size_t granules = size_bytes / kGranule;
    if (granules < kSteps) return granules;
    auto octave =
        static_cast<std::size_t>(std::bit_width(granules)) - 4;  // granules >> octave is 8..15
    std::size_t bin = (octave + 1) * kSteps + ((granules >> octave) - kSteps);
    return std::min(bin, kBins - 1);
  }
  static std::size_t first_bit(std::uint64_t bits) {
    return static_cast<std::size_t>(std::countr_zero(bits));
  }
  // Of kCloseBins bins from `first` on, the one with the lowest block; kBins: all are empty. Which
  // it is cannot be foreseen, so it is found without a branch.
  std::size_t lowest_of_close(std::size_t first) const {
    std::size_t found = kBins;
    std::uintptr_t lowest = FreeTree::kNone;
    for (std::size_t bin = first; bin < first + kCloseBins; ++bin) {
      const bool is_lower = lowest_[bin] < lowest;
      found = is_lower ? bin : found;
      lowest = is_lower ? lowest_[bin] : lowest;
    }
    return found;
  }
  // Of the bins from `first` up to `end`, the one with the lowest block; kBins: all are empty.
  std::size_t lowest_bin(std::size_t first, std::size_t end) const {
    std::size_t found = kBins;
    std::uintptr_t lowest = FreeTree::kNone;
    std::uint64_t octaves = octaves_ & (~std::uint64_t{0} << (first / kSteps));
    for (; octaves != 0; octaves &= octaves - 1) {
      const std::size_t octave = first_bit(octaves);
      const std::size_t base = octave * kSteps;
      if (base >= end) break;
      if (lowest_of_octave_[octave] >= lowest) continue;
      unsigned bins = filled_[octave];
      if (base < first) bins &= ~0u << (first - base);
      if (base + kSteps > end) bins &= (1u << (end - base)) - 1;
      for (; bins != 0; bins &= bins - 1) {
        const std::size_t bin = base + first_bit(bins);
        if (lowest_[bin] < lowest) lowest = lowest_[found = bin];
      }
    }
    return found;
  }
  RunBlock* first_from(std::size_t bin) const {
    while (bin < kBins && bins_[bin].empty()) ++bin;
    return bin == kBins ? nullptr : bins_[bin].best_fit(0);
  }

  std::array<FreeTree, kBins> bins_;
  std::array<std::uintptr_t, kBins + kCloseBins> lowest_;  // address
  std::array<std::uintptr_t, kOctaves> lowest_of_octave_;
  std::array<std::uint8_t, kOctaves> filled_{};  // a bit for each bin of the octave
  std::uint64_t octaves_ = 0;                    // a bit for each that has filled bins
  std::size_t bytes_ = 0;
};

}  // namespace uvm
