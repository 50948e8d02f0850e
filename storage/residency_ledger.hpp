// Records the last known place of each 2 MiB page of uvmalloc's memory. A record changes when a
// hint is planned or a page is first used. The driver may have moved the page since, so the place
// is an assumption. Each span has a flat table with 16 bytes for each page.
//
// Guarded by the state lock.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <vector>

#include <uvmalloc/place.hpp>
#include <uvmalloc/place_set.hpp>
#include "storage/pages.hpp"

namespace uvm {

class ResidencyLedger {
 public:
  // Adds a span whose pages are at no place yet (Place::nowhere()). Address and size are multiples
  // of 2 MiB.
  void add_span(const void* address, std::size_t size_bytes);
  void remove_span(const void* address);

  // Records that every page of the range, rounded inward to whole pages, is at `place`. Allocates
  // nothing, so it cannot fail after a hint was planned.
  void set(const void* address, std::size_t size_bytes, Place place);

  // Records that the contents of these pages were discarded: the pages are at no place. Until their
  // next use the driver may still count the pages at their last place.
  void discard(const void* address, std::size_t size_bytes);
  std::size_t discarded_bytes_at(Place place) const;

  // Returns the place of each page that the range touches; empty if no span contains the range.
  std::vector<Place> places_of(const void* address, std::size_t size_bytes) const;

  // Returns whether every page of the range, rounded outward, is known to be at `place`.
  bool all_at(const void* address, std::size_t size_bytes, Place place) const;

  // Return the bytes at `place`, in whole pages: within the range, or in all spans.
  std::size_t bytes_at(const void* address, std::size_t size_bytes, Place place) const;
  std::size_t bytes_at(Place place) const;

  // Return the most bytes, in whole pages, that the driver may count at `device`: also discarded
  // pages, and pages that were evicted from `device`, because a kernel may have brought them back.
  std::size_t most_bytes_at(const void* address, std::size_t size_bytes, Place device) const;
  std::size_t most_bytes_at(Place device) const;

 private:
  struct Page {
    Place place;
    bool is_discarded = false;  // the page is at no place now, and was at `place` before
    PlaceSet earlier;
    bool may_be_at(Place device) const { return place == device || earlier.has(device); }
    Place now() const { return is_discarded ? Place::nowhere() : place; }
  };
  struct Span {
    std::size_t size_bytes = 0;
    std::vector<Page> pages;
  };
  template <class Counts>
  std::size_t bytes_of_pages(const void* address, std::size_t size_bytes, Counts counts) const;
  template <class Change>
  void change(const void* address, std::size_t size_bytes, Change change);
  void count(const Page& page, std::size_t sign) {
    pages_at_[index_of(page.now())] += sign;
    if (page.is_discarded) discarded_at_[index_of(page.place)] += sign;
  }
  // Returns the span that holds `page_address`, or spans_.end().
  std::map<std::uintptr_t, Span>::const_iterator span_of(std::uintptr_t page_address) const;

  std::map<std::uintptr_t, Span> spans_;
  // Counts of pages by place, so that bytes_at(place) is cheap. The last element counts pages at no
  // place.
  static constexpr std::size_t kMostDevices = std::numeric_limits<std::int8_t>::max() + 1;
  static std::size_t index_of(Place place) {
    if (place.is_device()) return static_cast<std::size_t>(place.index);
    return place.is_host() ? kMostDevices : kMostDevices + 1;
  }
  std::array<std::size_t, kMostDevices + 2> pages_at_{};
  std::array<std::size_t, kMostDevices + 2> discarded_at_{};
};

}  // namespace uvm
