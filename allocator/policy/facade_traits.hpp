// Properties of memory kinds (facades). Each property is defined only here.
#pragma once

#include <cstddef>

#include <uvmalloc/facade.hpp>
#include <uvmalloc/place.hpp>
#include "allocator/policy/size_classes.hpp"
#include "storage/pages.hpp"

namespace uvm {

// Whether a stream orders the uses of a block. Host and pinned blocks have no stream.
constexpr bool is_stream_ordered(Facade facade) {
  return facade == Facade::kDevice;
}

// Whether a block of `size_bytes` shares its 2 MiB pages with no other block.
constexpr bool is_page_granular(Facade facade, std::size_t size_bytes) {
  return facade != Facade::kDevice && size_bytes >= kPageGranularBytes;
}

// Rounds a request up to 2 MiB pages, to pages of the host, or to 512 bytes. A pinned block begins
// on a page of the host, as memory from cudaHostAlloc does, because direct I/O relies on that.
// Blocks are placed one after another. All pinned blocks except small ones are whole pages of the
// host, so each such block begins on a page.
inline std::size_t rounded_size(Facade facade, std::size_t size_bytes) {
  if (is_page_granular(facade, size_bytes)) return round_up(size_bytes, kPageBytes);
  const bool in_host_pages = facade == Facade::kPinned && size_bytes > kSmallBytes;
  return round_up(size_bytes, in_host_pages ? host_page_bytes() : kGranule);
}

}  // namespace uvm
