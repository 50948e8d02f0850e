#include "pytorch/plugin/torch_statistics.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <limits>

namespace uvm::torch_plugin {
namespace {

using c10::CachingAllocator::Stat;

void add(Stat* stat, const Gauge& gauge) {
  stat->current += static_cast<int64_t>(gauge.current);
  stat->peak += static_cast<int64_t>(gauge.peak);
  stat->allocated += static_cast<int64_t>(gauge.increased);
  stat->freed += static_cast<int64_t>(gauge.decreased);
}

void add(Stat* stat, const Stat& more) {
  stat->current += more.current;
  stat->peak += more.peak;
  stat->allocated += more.allocated;
  stat->freed += more.freed;
}

void add(c10::CachingAllocator::DurationStat* stat, const CallTimes& times) {
  const auto microseconds = [](std::chrono::nanoseconds time) {
    return std::chrono::duration_cast<std::chrono::microseconds>(time).count();
  };
  if (times.calls == 0) return;
  stat->min = stat->count == 0 ? microseconds(times.shortest)
                               : std::min(stat->min, microseconds(times.shortest));
  stat->max = std::max(stat->max, microseconds(times.longest));
  stat->total += microseconds(times.total);
  stat->count += static_cast<int64_t>(times.calls);
}

// Torch 2.11 does not count rejections.
template <class Stats>
void add_rejections(Stats* stats, std::uint64_t rejections) {
  if constexpr (requires { stats->num_oom_rejections; }) {
    stats->num_oom_rejections += static_cast<int64_t>(rejections);
  }
}

template <class Stats>
std::uint64_t rejections_in(const Stats& stats) {
  if constexpr (requires { stats.num_oom_rejections; }) {
    return static_cast<std::uint64_t>(stats.num_oom_rejections);
  }
  return 0;
}

constexpr std::array kTypes = {c10::CachingAllocator::StatType::SMALL_POOL,
                               c10::CachingAllocator::StatType::LARGE_POOL,
                               c10::CachingAllocator::StatType::AGGREGATE};

// Torch has statistics of private pools from 2.15 on.
template <class Stats>
void add_private_pools(Stats* stats, const std::vector<PrivatePoolStatistics>& pools,
                       c10::DeviceIndex device) {
  if constexpr (requires { stats->reserved_bytes_by_private_pools; }) {
    for (const PrivatePoolStatistics& pool : pools) {
      if (pool.device != device) continue;
      auto& figures = stats->reserved_bytes_by_private_pools[pool_id(pool.id)];
      for (std::size_t of = 0; of < kTypes.size(); ++of) {
        add(&figures[static_cast<std::size_t>(kTypes[of])], pool.reserved_bytes[of]);
      }
    }
  }
}
template <class Stats>
void add_private_pools(Stats* stats, const Stats& more) {
  if constexpr (requires { stats->reserved_bytes_by_private_pools; }) {
    for (const auto& [id, figures] : more.reserved_bytes_by_private_pools) {
      auto& sum = stats->reserved_bytes_by_private_pools[id];
      for (std::size_t of = 0; of < figures.size(); ++of) add(&sum[of], figures[of]);
    }
  }
}

}  // namespace

c10::CachingDeviceAllocator::DeviceStats device_stats(const Statistics& statistics,
                                                      c10::DeviceIndex device,
                                                      std::uint64_t rejections) {
  c10::CachingDeviceAllocator::DeviceStats out;
  const auto& classes = statistics.classes[static_cast<std::size_t>(Facade::kDevice)].at(
      static_cast<std::size_t>(device));
  for (std::size_t of = 0; of < kTypes.size(); ++of) {
    const ClassStatistics& figures = classes[of];
    auto at = static_cast<std::size_t>(kTypes[of]);
    add(&out.allocation[at], figures.allocations);
    add(&out.segment[at], figures.segments);
    add(&out.active[at], figures.active_blocks);
    add(&out.allocated_bytes[at], figures.allocated_bytes);
    add(&out.reserved_bytes[at], figures.reserved_bytes);
    add(&out.active_bytes[at], figures.active_bytes);
    // As in torch, a block counts here until it is free again.
    add(&out.requested_bytes[at], figures.active_requested_bytes);
  }
  const ServiceStatistics& service =
      statistics.service[static_cast<std::size_t>(Facade::kDevice)].at(
          static_cast<std::size_t>(device));
  out.num_alloc_retries = static_cast<int64_t>(service.pressure_rounds);
  out.num_ooms = static_cast<int64_t>(service.out_of_memory - rejections);
  add_rejections(&out, rejections);
  add_private_pools(&out, statistics.private_pools, device);
  out.num_sync_all_streams = static_cast<int64_t>(service.fence_waits);
  out.num_device_alloc = static_cast<int64_t>(service.span_allocations.calls);
  out.num_device_free = static_cast<int64_t>(service.span_frees.calls);
  out.max_split_size = std::numeric_limits<int64_t>::max();  // blocks of all sizes are split
  return out;
}

void add_device_stats(c10::CachingDeviceAllocator::DeviceStats* stats,
                      const c10::CachingDeviceAllocator::DeviceStats& more) {
  using c10::CachingDeviceAllocator::DeviceStats;
  for (auto member : {&DeviceStats::allocation, &DeviceStats::segment, &DeviceStats::active,
                      &DeviceStats::inactive_split, &DeviceStats::allocated_bytes,
                      &DeviceStats::reserved_bytes, &DeviceStats::active_bytes,
                      &DeviceStats::inactive_split_bytes, &DeviceStats::requested_bytes}) {
    for (std::size_t of = 0; of < (stats->*member).size(); ++of) {
      add(&(stats->*member)[of], (more.*member)[of]);
    }
  }
  for (auto member : {&DeviceStats::oversize_allocations, &DeviceStats::oversize_segments}) {
    add(&(stats->*member), more.*member);
  }
  for (auto member :
       {&DeviceStats::num_alloc_retries, &DeviceStats::num_ooms, &DeviceStats::num_sync_all_streams,
        &DeviceStats::num_device_alloc, &DeviceStats::num_device_free}) {
    stats->*member += more.*member;
  }
  add_rejections(stats, rejections_in(more));
  add_private_pools(stats, more);
  stats->max_split_size = std::min(stats->max_split_size, more.max_split_size);
}

at::HostStats host_stats(const Statistics& statistics) {
  at::HostStats out;
  const auto pinned = static_cast<std::size_t>(Facade::kPinned);
  for (const auto& device : statistics.classes[pinned]) {
    const ClassStatistics& figures = device[kSizeClasses];
    add(&out.active_requests, figures.active_blocks);
    add(&out.active_bytes, figures.active_bytes);
    add(&out.allocations, figures.segments);
    add(&out.allocated_bytes, figures.reserved_bytes);
  }
  for (const ServiceStatistics& device : statistics.service[pinned]) {
    add(&out.host_alloc_time, device.span_allocations);
    add(&out.host_free_time, device.span_frees);
  }
  out.num_host_alloc = out.allocations.allocated;
  out.num_host_free = out.allocations.freed;
  return out;
}

void add_segments(const std::vector<SegmentDescription>& segments, c10::MempoolId_t pool,
                  const MemoryHistory& history,
                  std::vector<c10::CachingDeviceAllocator::SegmentInfo>* out) {
  const std::uint64_t wanted = pool_number(pool);
  for (const SegmentDescription& segment : segments) {
    if (segment.facade != Facade::kDevice) continue;
    if (wanted != 0 && segment.private_pool != wanted) continue;
    c10::CachingDeviceAllocator::SegmentInfo info;
    info.device = static_cast<c10::DeviceIndex>(segment.device);
    info.address = address_of(segment.base);
    info.total_size = segment.size_bytes;
    info.stream = reinterpret_cast<decltype(info.stream)>(segment.stream);
    info.is_large = !segment.is_of_small_objects;
    info.is_expandable = true;  // pages are added and removed one by one
    info.owner_private_pool_id = pool_id(segment.private_pool);
    const char* address = static_cast<const char*>(segment.base);
    for (const SegmentDescription::Piece& piece : segment.blocks) {
      c10::CachingDeviceAllocator::BlockInfo block;
      block.size = piece.size_bytes;
      block.requested_size = piece.requested_bytes;
      block.allocated = piece.state == BlockState::kLive;
      block.active = piece.state != BlockState::kFree && piece.state != BlockState::kCached;
      if (block.allocated) info.allocated_size += piece.size_bytes;
      if (block.active) {
        info.active_size += piece.size_bytes;
        info.requested_size += piece.requested_bytes;
        block.context_when_allocated = history.context_of(address);
      }
      address += piece.size_bytes;
      // For torch, adjacent free pieces are one block, even if different caches hold them.
      if (!block.active && !info.blocks.empty() && !info.blocks.back().active) {
        info.blocks.back().size += piece.size_bytes;
      } else {
        info.blocks.push_back(std::move(block));
      }
    }
    out->push_back(std::move(info));
  }
}

}  // namespace uvm::torch_plugin
