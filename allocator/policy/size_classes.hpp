// The size classes of blocks. A block is
//   small    up to kSmallBytes: an object of an arena; statistics call all other blocks large
//   medium   below kLargeBytes: in thread caches, each multiple of 512 bytes has its own bin
//   large    from kLargeBytes on: thread caches hold large blocks only if that pays
// In addition, host and pinned blocks from kPageGranularBytes on have whole pages.
#pragma once

#include <cstddef>
#include <cstdint>

#include <uvmalloc/statistics.hpp>
#include "allocator/policy/allocation_policy.hpp"
#include "storage/pages.hpp"
#include "storage/storage_records.hpp"

namespace uvm {

using policy::kLargeBytes;
using policy::kPageGranularBytes;
using policy::kSmallBytes;

// The largest size that a block's record can hold, in whole pages: 2 TiB. Larger requests are
// refused before rounding can overflow.
inline constexpr std::size_t kLargestRequest =
    RealStorage::kMostSizeBytes / kPageBytes * kPageBytes;

constexpr SizeClass size_class_of(std::size_t size_bytes) {
  return size_bytes <= kSmallBytes ? SizeClass::kSmall : SizeClass::kLarge;
}

static_assert(kSmallBytes % kGranule == 0 && kLargeBytes % kGranule == 0);
static_assert(kSmallBytes < kLargeBytes && kLargeBytes < kPageGranularBytes &&
              kPageGranularBytes <= kPageBytes);
static_assert(kPageBytes % policy::kSmallSegmentBytes == 0, "segments fill a page");

}  // namespace uvm
