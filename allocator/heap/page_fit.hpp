// Pure functions of addresses that choose the place of a request in a free block.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>

#include "allocator/heap/block.hpp"
#include "allocator/heap/block_start_map.hpp"

namespace uvm {

// The smallest packed block. Two smaller blocks could start in one step of a BlockStartMap.
inline constexpr std::size_t kSmallestPacked = BlockStartMap::kStep + kGranule;

inline char* page_of(const char* address) {
  return reinterpret_cast<char*>(address_of(address) & ~(kPageBytes - 1));
}

inline char* page_after(const char* address) {
  return reinterpret_cast<char*>(round_up(address_of(address), kPageBytes));
}

inline std::size_t bytes_between(const char* begin, const char* end) {
  return begin < end ? static_cast<std::size_t>(end - begin) : 0;
}

// Returns the bytes from the start of a packed block to a multiple of `alignment_bytes`: 0, or
// enough for a block.
inline std::size_t aligned_head(const PageBlock& block, std::size_t alignment_bytes) {
  const std::size_t begin = address_of(block.address());
  std::size_t head_bytes = round_up(begin, alignment_bytes) - begin;
  while (head_bytes != 0 && head_bytes < kSmallestPacked) head_bytes += alignment_bytes;
  return head_bytes;
}

// Returns how many bytes of a free block to leave in front of a request while pages are conserved.
// Chooses the position at which the request takes the fewest wholly free pages. Of several such
// positions, chooses those at which the ends of the request cut the fewest pages in two, and of
// these the lowest.
inline std::size_t page_conserving_offset(const PageBlock& block, std::size_t size_bytes) {
  const char* begin = block.address();
  const char* end = block.end();
  const char* first_page = page_after(begin);
  const char* pages_end = page_of(end);
  auto cost_at = [&](const char* from) {
    const char* until = from + size_bytes;
    if (bytes_between(until, end) < kSmallestPacked) until = end;  // too small for a block
    const char* taken = std::max<const char*>(page_of(from), first_page);
    const char* taken_end = std::min<const char*>(page_after(until), pages_end);
    const int cuts =
        int{from != begin && page_of(from) != from} + int{until != end && page_of(until) != until};
    return std::pair(bytes_between(taken, taken_end), cuts);
  };
  const char* best = begin;
  auto least = cost_at(begin);
  for (const char* from : {first_page, pages_end - size_bytes, end - size_bytes}) {
    if (from < begin + kSmallestPacked || from + size_bytes > end) continue;
    if (const auto cost = cost_at(from); cost < least) {
      best = from;
      least = cost;
    }
  }
  return bytes_between(begin, best);
}

}  // namespace uvm
