// Sets of pages, as spans in the order of their page numbers.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "allocator/placement/block_groups.hpp"
#include "storage/pages.hpp"

namespace uvm {

inline std::size_t bytes_of(const std::vector<PageSpan>& pages) {
  std::size_t count = 0;
  for (const PageSpan& each : pages) count += each.count;
  return count * kPageBytes;
}

// Adds pages after all others. Joins them with the last span if they are its neighbours.
inline void append(std::vector<PageSpan>* spans, const PageSpan& pages) {
  if (!spans->empty() && spans->back().end() == pages.first) {
    spans->back().count += pages.count;
  } else {
    spans->push_back(pages);
  }
}

inline PageSpan pages_touched(const char* address, std::size_t size_bytes) {
  const PageNumber first = page_of(address_of(address));
  return {first, page_of(address_of(address) + size_bytes + kPageBytes - 1) - first};
}

// The pages in which no other byte is.
inline PageSpan pages_inside(const char* address, std::size_t size_bytes) {
  const PageNumber first = page_of(address_of(address) + kPageBytes - 1);
  const PageNumber end = page_of(address_of(address) + size_bytes);
  return {first, first < end ? end - first : 0};
}

inline std::vector<PageSpan> common_pages(const std::vector<PageSpan>& some,
                                          const std::vector<PageSpan>& others) {
  std::vector<PageSpan> common;
  for (const PageSpan& each : some) {
    for (const PageSpan& other : others) {
      const PageNumber first = std::max(each.first, other.first);
      const PageNumber end = std::min(each.end(), other.end());
      if (first < end) common.push_back({first, end - first});
    }
  }
  std::ranges::sort(common, {}, &PageSpan::first);
  return common;
}

inline std::vector<PageSpan> pages_without(const std::vector<PageSpan>& pages,
                                           const std::vector<PageSpan>& without) {
  std::vector<PageSpan> left;
  for (const PageSpan& each : pages) {
    PageNumber first = each.first;
    for (const PageSpan& hole : common_pages({each}, without)) {
      if (first < hole.first) left.push_back({first, hole.first - first});
      first = hole.end();
    }
    if (first < each.end()) left.push_back({first, each.end() - first});
  }
  return left;
}

inline std::vector<PageSpan> first_pages(std::vector<PageSpan> pages, std::size_t most) {
  for (PageSpan& each : pages) {
    each.count = std::min(each.count, most);
    most -= each.count;
  }
  std::erase_if(pages, [](const PageSpan& each) { return each.count == 0; });
  return pages;
}

// Splits the pages into parts of at most this many pages, in the same order.
inline std::vector<std::vector<PageSpan>> parts_of(const std::vector<PageSpan>& pages,
                                                   std::size_t most) {
  std::vector<std::vector<PageSpan>> parts;
  std::size_t room = 0;
  for (PageSpan left : pages) {
    while (left.count != 0) {
      if (room == 0) {
        parts.emplace_back();
        room = most;
      }
      const std::size_t count = std::min(left.count, room);
      parts.back().push_back({left.first, count});
      left = {left.first + count, left.count - count};
      room -= count;
    }
  }
  return parts;
}

// Returns the bytes of the pages that are on the device. `places_of` returns the places of a span's
// pages.
template <class PlacesOf>
std::size_t bytes_on(int device, const std::vector<PageSpan>& pages, PlacesOf places_of) {
  std::size_t count = 0;
  for (const PageSpan& each : pages) {
    count += static_cast<std::size_t>(std::ranges::count(places_of(each), Place::device(device)));
  }
  return count * kPageBytes;
}

// Returns as many of the first pages as contain at most `most` pages that are not on the device.
inline std::vector<PageSpan> first_missing(const BlockGroups& blocks,
                                           const std::vector<PageSpan>& pages, Place device,
                                           std::size_t most) {
  std::vector<PageSpan> first;
  for (const PageSpan& each : pages) {
    std::size_t count = 0;
    for (const Place place : blocks.places_of(each)) {
      if (place != device && most-- == 0) {
        if (count != 0) first.push_back({each.first, count});
        return first;
      }
      ++count;
    }
    if (count != 0) first.push_back({each.first, count});
  }
  return first;
}

// Returns the pages after the first `staying` pages that are on the device; all pages if `staying`
// is 0. Returns no pages if none of them is on the device. `places_of` returns the places of a
// span's pages.
template <class PlacesOf>
std::vector<PageSpan> pages_beyond(std::size_t staying, const std::vector<PageSpan>& pages,
                                   Place device, PlacesOf places_of) {
  std::vector<PageSpan> beyond;
  bool any_there = false;
  for (const PageSpan& each : pages) {
    std::size_t skipped = 0;
    for (const Place place : places_of(each)) {
      const bool is_there = place == device;
      any_there |= is_there && staying == 0;
      if (staying != 0) ++skipped;
      if (is_there && staying != 0) --staying;
    }
    if (skipped < each.count) beyond.push_back({each.first + skipped, each.count - skipped});
  }
  if (!any_there) beyond.clear();
  return beyond;
}

inline std::vector<PageSpan> all_pages(std::vector<PageSpan> some,
                                       const std::vector<PageSpan>& others) {
  for (const PageSpan& each : pages_without(others, some)) some.push_back(each);
  std::ranges::sort(some, {}, &PageSpan::first);
  return some;
}

// Call this after the host's copies of the pages were given up. Returns the pages that are still on
// the device: a kernel has written to them, so the host had no copy. Empty if the driver does not
// report where pages are.
inline std::vector<PageSpan> written_pages(const BlockGroups& blocks,
                                           const std::vector<PageSpan>& pages, int device) {
  std::vector<PageSpan> written;
  for (const PageSpan& each : pages) {
    each_run(
        each, blocks.found_places(each, device),
        [device](Place place) { return place == Place::device(device); },
        [&](const PageSpan& run) { written.push_back(run); });
  }
  return written;
}

}  // namespace uvm
