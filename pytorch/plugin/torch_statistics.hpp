// Our figures in torch's terms.
#pragma once

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <uvmalloc/allocator/caching_managed_allocator.hpp>

namespace uvm::torch_plugin {

// The device facade's figures of one device. "Segments" are the runs of 2 MiB pages that hold its
// blocks.
c10::CachingDeviceAllocator::DeviceStats device_stats(const Statistics& statistics,
                                                      c10::DeviceIndex device);

// The pinned facade's figures, over all devices.
at::HostStats host_stats(const Statistics& statistics);

// The device facade's segments and blocks, as torch's memory viewer reads them.
std::vector<c10::CachingDeviceAllocator::SegmentInfo> segment_infos(
    const std::vector<SegmentDescription>& segments);

}  // namespace uvm::torch_plugin
