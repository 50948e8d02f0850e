// Our figures in torch's terms.
#pragma once

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>

#include "allocator/interface.hpp"
#include "pytorch/plugin/memory_history.hpp"

namespace uvm::torch_plugin {

// The device facade's figures of one device. As with torch's expandable segments, memory is held in
// pages of 2 MiB that are given back one by one. So no inactive split blocks a release, and
// `segment` counts these pages. We count rejections as out of memory, which torch does not.
c10::CachingDeviceAllocator::DeviceStats device_stats(const Statistics& statistics,
                                                      c10::DeviceIndex device,
                                                      std::uint64_t rejections);

// Adds another allocator's figures of the same device; peaks are then at most the sum.
void add_device_stats(c10::CachingDeviceAllocator::DeviceStats* stats,
                      const c10::CachingDeviceAllocator::DeviceStats& more);

// The pinned facade's figures, over all devices.
at::HostStats host_stats(const Statistics& statistics);

// The device facade's segments and blocks, as torch's memory viewer reads them; of one private pool
// where `pool` is not {0, 0}.
void add_segments(const std::vector<SegmentDescription>& segments, c10::MempoolId_t pool,
                  const MemoryHistory& history,
                  std::vector<c10::CachingDeviceAllocator::SegmentInfo>* out);

}  // namespace uvm::torch_plugin
