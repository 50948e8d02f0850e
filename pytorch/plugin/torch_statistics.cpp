#include <uvmalloc/pytorch/plugin/torch_statistics.hpp>

#include <array>

namespace uvm::torch_plugin {
namespace {

using c10::CachingAllocator::Stat;

void add(Stat* stat, const Gauge& gauge) {
  stat->current += static_cast<int64_t>(gauge.current);
  stat->peak += static_cast<int64_t>(gauge.peak);
  stat->allocated += static_cast<int64_t>(gauge.increased);
  stat->freed += static_cast<int64_t>(gauge.decreased);
}

}  // namespace

c10::CachingDeviceAllocator::DeviceStats device_stats(const Statistics& statistics,
                                                      c10::DeviceIndex device) {
  using c10::CachingAllocator::StatType;
  c10::CachingDeviceAllocator::DeviceStats out;
  const auto& classes = statistics.classes[static_cast<std::size_t>(Facade::kDevice)].at(
      static_cast<std::size_t>(device));
  constexpr std::array kTypes = {StatType::SMALL_POOL, StatType::LARGE_POOL, StatType::AGGREGATE};
  for (std::size_t of = 0; of < kTypes.size(); ++of) {
    const ClassStatistics& figures = classes[of];
    auto at = static_cast<std::size_t>(kTypes[of]);
    add(&out.allocation[at], figures.allocations);
    add(&out.segment[at], figures.segments);
    add(&out.active[at], figures.active_blocks);
    add(&out.allocated_bytes[at], figures.allocated_bytes);
    add(&out.reserved_bytes[at], figures.reserved_bytes);
    add(&out.active_bytes[at], figures.active_bytes);
    add(&out.requested_bytes[at], figures.requested_bytes);
  }
  out.num_alloc_retries = static_cast<int64_t>(statistics.pressure_rounds);
  out.num_ooms = static_cast<int64_t>(statistics.out_of_memory);
  return out;
}

at::HostStats host_stats(const Statistics& statistics) {
  at::HostStats out;
  for (const auto& device : statistics.classes[static_cast<std::size_t>(Facade::kPinned)]) {
    const ClassStatistics& figures = device[kSizeClasses];
    add(&out.active_requests, figures.active_blocks);
    add(&out.active_bytes, figures.active_bytes);
    add(&out.allocations, figures.segments);
    add(&out.allocated_bytes, figures.reserved_bytes);
  }
  out.num_host_alloc = out.allocations.allocated;
  out.num_host_free = out.allocations.freed;
  return out;
}

std::vector<c10::CachingDeviceAllocator::SegmentInfo> segment_infos(
    const std::vector<SegmentDescription>& segments) {
  std::vector<c10::CachingDeviceAllocator::SegmentInfo> out;
  for (const SegmentDescription& segment : segments) {
    if (segment.facade != Facade::kDevice) continue;
    c10::CachingDeviceAllocator::SegmentInfo info;
    info.device = static_cast<c10::DeviceIndex>(segment.device);
    info.address = reinterpret_cast<std::size_t>(segment.base);
    info.total_size = segment.size_bytes;
    info.stream = reinterpret_cast<decltype(info.stream)>(segment.stream);
    info.is_large = segment.pool_class >= PoolClass::kPacked;
    for (const SegmentDescription::Piece& piece : segment.blocks) {
      c10::CachingDeviceAllocator::BlockInfo block;
      block.size = piece.size_bytes;
      block.requested_size = piece.requested_bytes;
      block.allocated = piece.state == BlockState::kLive;
      block.active = piece.state != BlockState::kFree;
      if (block.allocated) {
        info.allocated_size += piece.size_bytes;
        info.requested_size += piece.requested_bytes;
      }
      if (block.active) info.active_size += piece.size_bytes;
      info.blocks.push_back(block);
    }
    out.push_back(std::move(info));
  }
  return out;
}

}  // namespace uvm::torch_plugin
