// The ranges that a kernel uses, as the program reports them, and figures of the moves that were
// planned with these reports. Plain values.
#pragma once

#include <cstddef>
#include <cstdint>

namespace uvm::live {

inline constexpr std::uint8_t kReads = 1;
inline constexpr std::uint8_t kWrites = 2;
// The kernel touches each byte of the range at most once, so caching would not speed it up.
inline constexpr std::uint8_t kOnce = 4;

// Returns the access of the union of two ranges with these accesses.
constexpr std::uint8_t joined_access(std::uint8_t one, std::uint8_t other) {
  const auto either = static_cast<std::uint8_t>(one | other);
  return (one & other & kOnce) != 0 ? either : static_cast<std::uint8_t>(either & ~kOnce);
}

// A size that reaches to the end of the range's block.
inline constexpr std::size_t kToEndOfBlock = static_cast<std::size_t>(-1);

// A range that a kernel uses, inside one block. uvmalloc moves only the pages of reported ranges.
// Other pages that the kernel uses migrate by page faults.
struct UseRange {
  std::uintptr_t address = 0;
  std::size_t size_bytes = 0;
  std::uint8_t access = kReads | kWrites;
};

// A captured graph, or a part of it, counts as one kernel, because nothing can be moved between its
// kernels. Its temporary memory is in no live block.
enum class Launch : std::uint8_t { kKernel, kGraph };

// Totals since the start. A page is 2 MiB.
struct LiveFigures {
  std::uint64_t kernels = 0;
  std::uint64_t brought_pages = 0;  // pages prefetched by the plan
  std::uint64_t evicted_pages = 0;
  std::uint64_t pages_to_peers = 0;  // evicted pages that moved to a peer
  std::uint64_t discarded_pages = 0;
  std::uint64_t missing_pages = 0;   // pages that kernels needed and that migrated by faults
  std::uint64_t in_place_pages = 0;  // times that kernels began to use a page on the host
  std::uint64_t checked_pages = 0;   // pages compared with the places that the driver reports
  std::uint64_t wrong_pages = 0;     // checked pages that were not where the plan expected them

  LiveFigures& operator+=(const LiveFigures& other) {
    kernels += other.kernels;
    brought_pages += other.brought_pages;
    evicted_pages += other.evicted_pages;
    pages_to_peers += other.pages_to_peers;
    discarded_pages += other.discarded_pages;
    missing_pages += other.missing_pages;
    in_place_pages += other.in_place_pages;
    checked_pages += other.checked_pages;
    wrong_pages += other.wrong_pages;
    return *this;
  }
};

}  // namespace uvm::live
