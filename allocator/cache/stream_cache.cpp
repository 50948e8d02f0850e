#include "allocator/cache/stream_cache.hpp"

#include <utility>

namespace uvm {

StreamCache::Bin* StreamCache::claim(std::uint32_t granules) {
  for (Bin& bin : runs_[set_of(granules)].bins) {
    if (bin.count != 0) continue;
    bin.granules = granules;
    return &bin;
  }
  return nullptr;
}

void StreamCache::rename(const StreamKey& key) {
  key_ = key;
  // Blocks of private pools are counted here but never cached.
  largest_cached_ = key.private_pool != 0 ? 0 : kLargeBytes - 1;
  on_miss_ = stream_;
  blocks_at_miss_ = counts_.blocks;
}

void StreamCache::set_may_cache_large(bool keep) {
  const std::size_t largest = keep ? SIZE_MAX : kLargeBytes - 1;
  if (largest_cached_ == 0 || largest_cached_ == largest) return;
  largest_cached_ = largest;
  on_miss_ = keep ? kUnknownStream : stream_;
  blocks_at_miss_ = counts_.blocks;
}

void StreamCache::put_spare(Block* block) {
  other_bytes_ += block->size_bytes();
  direct_[block->size_bytes() / kGranule - 1].put(block);
}

bool StreamCache::flush_large(BlockChain* out) noexcept {
  if (largest_cached_ != SIZE_MAX) return true;
  flush(CachedKind::kLarge, out);
  if (out->empty()) return true;
  const std::uint64_t before = std::exchange(blocks_at_miss_, counts_.blocks);
  return counts_.blocks - before >= policy::kRequestsPerLargeMiss;
}

std::size_t StreamCache::Bin::empty(std::uint32_t keep, BlockChain* out) noexcept {
  std::size_t bytes = 0;
  while (count > keep) {
    Block* block = pop();
    block->set(BlockState::kReleasing);
    bytes += block->size_bytes();
    out->push(block);
  }
  return bytes;
}

void StreamCache::flush(CachedKind kind, BlockChain* out) noexcept {
  if (kind == CachedKind::kSmall) {
    for (std::size_t i = 0; i < kSmallBins; ++i) other_bytes_ -= direct_[i].empty(0, out);
    return;
  }
  if (kind != CachedKind::kLarge) {
    for (std::size_t word = 0; word < filled_medium_.size(); ++word) {
      for (std::uint64_t bits = std::exchange(filled_medium_[word], 0); bits != 0;
           bits &= bits - 1) {
        const std::size_t index = word * 64 + static_cast<std::size_t>(std::countr_zero(bits));
        medium_bytes_ -= direct_[index].empty(0, out);
      }
    }
  }
  if (kind != CachedKind::kMedium) {
    for (std::uint64_t sets = std::exchange(filled_sets_, 0); sets != 0; sets &= sets - 1) {
      for (Bin& bin : runs_[static_cast<std::size_t>(std::countr_zero(sets))].bins) {
        other_bytes_ -= bin.empty(0, out);
      }
    }
  }
}

void StreamCache::flush_some(const Block& like, BlockChain* out) noexcept {
  Bin& bin = direct_[like.size_bytes() / kGranule - 1];
  other_bytes_ -= bin.empty(bin.count - std::min(bin.count, policy::kFlushedBlocks), out);
}

}  // namespace uvm
