// Converts the allocator's statistics to torch's structures.
#pragma once

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>

#include "allocator/interface.hpp"
#include "pytorch/plugin/memory_history.hpp"

namespace uvm::torch_plugin {

// Returns the statistics of one device's memory. As with torch's expandable segments, memory is
// held in pages of 2 MiB that are returned one by one. So inactive splits cannot block a release
// and are not counted, and `segment` counts these pages. The allocator counts rejections as out of
// memory, but torch does not, so `rejections` are subtracted.
c10::CachingDeviceAllocator::DeviceStats device_stats(const Statistics& statistics,
                                                      c10::DeviceIndex device,
                                                      std::uint64_t rejections);

// Adds another allocator's statistics of the same device. Summed peaks are an upper bound.
void add_device_stats(c10::CachingDeviceAllocator::DeviceStats* stats,
                      const c10::CachingDeviceAllocator::DeviceStats& more);

// Returns the statistics of pinned memory over all devices.
at::HostStats host_stats(const Statistics& statistics);

// Adds the segments and blocks of device memory in the form that torch's memory viewer reads. If
// `pool` is not {0, 0}, adds only those of that private pool.
void add_segments(const std::vector<SegmentDescription>& segments, c10::MempoolId_t pool,
                  const MemoryHistory& history,
                  std::vector<c10::CachingDeviceAllocator::SegmentInfo>* out);

}  // namespace uvm::torch_plugin
