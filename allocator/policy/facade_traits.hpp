// What follows from a facade: written once, so that a new facade is a row here.
#pragma once

#include <cstddef>

#include <uvmalloc/allocator/policy/size_classes.hpp>
#include <uvmalloc/runtime/place.hpp>
#include <uvmalloc/storage/facade.hpp>
#include <uvmalloc/storage/pages.hpp>

namespace uvm {

// Whether work on a stream orders the uses of a block. Host and pinned blocks belong to no stream.
constexpr bool is_stream_ordered(Facade facade) {
  return facade == Facade::kDevice;
}

// Whether a block of so many bytes has its 2 MiB pages for itself.
constexpr bool has_whole_pages(Facade facade, std::size_t size_bytes) {
  return facade != Facade::kDevice && size_bytes >= kWholeBytes;
}

// How a request is rounded: to whole pages, else to 512 bytes.
constexpr std::size_t rounded_size(Facade facade, std::size_t size_bytes) {
  return round_up(size_bytes, has_whole_pages(facade, size_bytes) ? kPageBytes : kGranule);
}

// The size of a pinned block that begins on a page of the host, as memory from cudaHostAlloc does.
// Direct I/O relies on that. A block begins where the block before it ends, and all but small
// blocks lie among their like, so it is enough that callers ask for such sizes.
inline std::size_t in_host_pages(std::size_t size_bytes) {
  return size_bytes > kSmallBytes ? round_up(size_bytes, host_page_bytes()) : size_bytes;
}

}  // namespace uvm
