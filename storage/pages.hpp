// The page of 2 MiB, the unit in which drivers move, charge and evict memory.
#pragma once

#include <unistd.h>

#include <bit>
#include <cstddef>
#include <cstdint>

namespace uvm {

inline constexpr std::size_t kPageShift = 21;
inline constexpr std::size_t kPageBytes = std::size_t{1} << kPageShift;  // 2 MiB
// Addresses and sizes of all blocks are multiples of kGranule.
inline constexpr std::size_t kGranule = 512;

// Rounds up to a multiple of `multiple`, a power of two. A value above SIZE_MAX - multiple
// saturates to the largest multiple.
constexpr std::size_t round_up(std::size_t bytes, std::size_t multiple) {
  std::size_t rounded = (bytes + multiple - 1) & ~(multiple - 1);
  return rounded < bytes ? ~(multiple - 1) : rounded;
}

// Returns the size of a page of the host's own memory: 4 KiB on x86-64, up to 64 KiB on 64-bit ARM.
inline std::size_t host_page_bytes() {
  static const auto kBytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return kBytes;
}

inline std::uintptr_t address_of(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer);
}

// The number of a page of 2 MiB: its address divided by kPageBytes.
enum class PageNumber : std::uintptr_t {};

constexpr PageNumber page_of(std::uintptr_t address) {
  return PageNumber{address >> kPageShift};
}
constexpr std::uintptr_t address_of(PageNumber page) {
  return static_cast<std::uintptr_t>(page) << kPageShift;
}
inline char* start_of_page(PageNumber page) {
  return reinterpret_cast<char*>(address_of(page));
}
constexpr PageNumber operator+(PageNumber page, std::size_t pages) {
  return PageNumber{static_cast<std::uintptr_t>(page) + pages};
}
// Pages from `first` to `page`.
constexpr std::size_t operator-(PageNumber page, PageNumber first) {
  return static_cast<std::uintptr_t>(page) - static_cast<std::uintptr_t>(first);
}

// A run of adjacent pages.
struct PageSpan {
  PageNumber first{};
  std::size_t count = 0;
  PageNumber end() const { return first + count; }
};

}  // namespace uvm
