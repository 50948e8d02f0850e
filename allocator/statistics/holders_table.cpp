#include "allocator/statistics/holders_table.hpp"

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <uvmalloc/configuration.hpp>
#include "allocator/heap/stream_key.hpp"
#include "runtime/log.hpp"

namespace uvm {
namespace {

constexpr std::size_t kMostRows = 5;  // of streams, and also of private pools

// Returns one row for each of the pools or streams that hold the most bytes, the largest first.
template <class Holder, class Held, class Row>
std::string most_rows(std::vector<const Holder*> holders, std::string_view others, Held held,
                      Row row) {
  std::stable_sort(holders.begin(), holders.end(), [&](const Holder* left, const Holder* right) {
    return held(*left) > held(*right);
  });
  std::string rows;
  for (std::size_t i = 0; i < std::min(holders.size(), kMostRows); ++i) rows += row(*holders[i]);
  if (holders.size() > kMostRows) {
    rows += fmt::format("  and {} more {}\n", holders.size() - kMostRows, others);
  }
  return rows;
}

std::string facade_rows(const Statistics& statistics) {
  std::string rows =
      fmt::format("  {:<15} {:>12} {:>12} {:>9} {:>12} {:>12} {:>12}\n", "memory", "in use", "peak",
                  "blocks", "large blocks", "pending free", "reserved");
  for (std::size_t facade = 0; facade < kFacades; ++facade) {
    for (std::size_t device = 0; device < statistics.classes[facade].size(); ++device) {
      const auto& classes = statistics.classes[facade][device];
      const ClassStatistics& all = classes[kSizeClasses];
      if (device != 0 && all.allocated_bytes.peak == 0 && all.reserved_bytes.current == 0) continue;
      const std::uint64_t in_use = all.allocated_bytes.current;
      const std::uint64_t fenced = all.active_bytes.current - in_use;
      rows += fmt::format(
          "  {:<15} {:>12} {:>12} {:>9} {:>12} {:>12} {:>12}\n",
          fmt::format("{}, device {}", to_string(static_cast<Facade>(facade)), device),
          format_size(in_use), format_size(all.allocated_bytes.peak), all.allocations.current,
          format_size(classes[static_cast<std::size_t>(SizeClass::kLarge)].allocated_bytes.current),
          format_size(fenced), format_size(all.reserved_bytes.current));
    }
  }
  return rows;
}

// Returns rows for device streams, or an empty string if fewer than two streams hold memory.
std::string stream_rows(const Statistics& statistics) {
  std::vector<const StreamStatistics*> streams;
  for (const StreamStatistics& stream : statistics.streams) {
    const bool holds = stream.live_bytes > 0 || stream.free_bytes != 0;
    if (stream.facade == Facade::kDevice && holds) streams.push_back(&stream);
  }
  if (streams.size() < 2) return "";
  // live_bytes is negative if blocks were freed into pools other than those that served them.
  auto in_use = [](const StreamStatistics& stream) {
    return static_cast<std::size_t>(std::max<std::int64_t>(stream.live_bytes, 0));
  };
  return most_rows(
      std::move(streams), "streams",
      [&](const StreamStatistics& stream) { return in_use(stream) + stream.free_bytes; },
      [&](const StreamStatistics& stream) {
        return fmt::format("  device {}, stream {:#x}: {} in use, {} free in pieces up to {}\n",
                           stream.device, stream.stream, format_size(in_use(stream)),
                           format_size(stream.free_bytes), format_size(stream.largest_free_bytes));
      });
}

std::string private_pool_rows(const Statistics& statistics) {
  std::vector<const PrivatePoolStatistics*> pools;
  for (const PrivatePoolStatistics& pool : statistics.private_pools) {
    if (pool.reserved_bytes[kSizeClasses].current != 0) pools.push_back(&pool);
  }
  auto held = [](const PrivatePoolStatistics& pool) {
    return pool.reserved_bytes[kSizeClasses].current;
  };
  return most_rows(std::move(pools), "private pools", held, [&](const PrivatePoolStatistics& pool) {
    if (pool.id == StreamKey::kReserved) {
      return fmt::format("  device {}, mapped by the program: {}\n", pool.device,
                         format_size(held(pool)));
    }
    return fmt::format("  device {}, private pool {} (of a graph or of the program): {}\n",
                       pool.device, pool.id, format_size(held(pool)));
  });
}

}  // namespace

std::string holders_table(const Statistics& statistics) {
  return facade_rows(statistics) + stream_rows(statistics) + private_pool_rows(statistics) +
         fmt::format(
             "  taken: {} of a budget of {}; of these, {} are free in pools in pieces up to {}, {} "
             "are "
             "cached by threads, {} are in unused pages\n",
             format_size(statistics.touched_bytes.current), format_size(statistics.budget_bytes),
             format_size(statistics.free_bytes), format_size(statistics.largest_free_bytes),
             format_size(statistics.thread_cached_bytes),
             format_size(statistics.touched_not_used_bytes));
}

}  // namespace uvm
