#include "allocator/process/report_figures.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace uvm {
namespace {

void add_memory(const Figures& figures, JsonText* out) {
  out->add("peak_bytes", figures.peak_bytes);
  out->add("peak_touched_bytes", figures.totals.touched_bytes.peak);
  out->add("peak_span_bytes", figures.totals.span_bytes.peak);
  std::uint64_t live_bytes = 0;
  for (const Figures::OfFacade& facade : figures.facades) live_bytes += facade.live_bytes;
  const std::uint64_t touched_bytes = figures.totals.touched_bytes.current;
  out->add("cached_bytes", touched_bytes - std::min(live_bytes, touched_bytes));
}

void add_facades(const Figures& figures, JsonText* out) {
  out->add_object("facades", [&] {
    for (std::size_t facade = 0; facade < kFacades; ++facade) {
      const Figures::OfFacade& of = figures.facades[facade];
      const std::uint64_t pool_bytes = figures.totals.pool_bytes[facade].current;
      out->add_object(to_string(static_cast<Facade>(facade)), [&] {
        out->add("allocations", of.allocations);
        out->add("allocated_bytes", of.allocated_bytes);
        out->add("live_bytes", of.live_bytes);
        out->add("cached_bytes", pool_bytes - std::min(of.live_bytes, pool_bytes));
        out->add("peak_bytes", of.peak_bytes);
        out->add("cache_hits", of.cache_hits);
      });
    }
  });
}

void add_unmanaged_host(const Figures& figures, JsonText* out) {
  out->add_object("host_unmanaged", [&] {
    out->add("allocations", figures.unmanaged_host_allocations);
    out->add("allocated_bytes", figures.unmanaged_host_bytes);
  });
}

void add_copies(const MoveStatistics::Copies& copies, JsonText* out) {
  out->add("count", copies.count);
  out->add("bytes", copies.bytes);
  out->add("bytes_at_or_above_threshold", copies.bytes_at_or_above_threshold);
}

void add_moves(const Figures& figures, JsonText* out) {
  const MoveStatistics& moves = figures.totals.moves;
  out->add_object("moves", [&] {
    out->add("total", moves.total());
    out->add("host_to_device", moves.host_to_device);
    out->add("device_to_host", moves.device_to_host);
    out->add("device_to_device", moves.device_to_device);
    out->add("bytes", moves.bytes);
  });
  out->add_object("copies_by_moves", [&] {
    add_copies(all_copies(moves), out);
    out->add_object("by_reason", [&] {
      for (std::size_t reason = 0; reason < kCopyReasons; ++reason) {
        const MoveStatistics::Copies& copies = moves.copies[reason];
        if (copies.count == 0) continue;
        out->add_object(to_string(static_cast<CopyReason>(reason)),
                        [&] { add_copies(copies, out); });
      }
    });
  });
}

void add_conversions(const Figures& figures, JsonText* out) {
  const Totals& totals = figures.totals;
  out->add_object("conversions", [&] {
    out->add("count", totals.conversions.count);
    out->add("bytes", totals.conversions.bytes);
  });
  out->add_object("materializations", [&] {
    out->add("copies", totals.materializations.copies);
    out->add("bytes", totals.materializations.bytes);
    out->add("steals", totals.materializations.steals);
  });
}

void add_forks(const Figures& figures, JsonText* out) {
  const auto& forks = figures.totals.forks;
  out->add_object("forks", [&] {
    out->add("count", forks.forks);
    out->add("copied_bytes", forks.copied_bytes);
    out->add("shared_bytes", forks.shared_bytes);
    out->add("without_copy", forks.without_copy);
    out->add("seconds", std::chrono::duration<double>(forks.time).count());
  });
}

void add_hints_of(const char* name, const Figures::OfHints& kind, JsonText* out) {
  out->add_object(name, [&] {
    out->add("sent", kind.sent);
    out->add("bytes", kind.bytes);
    out->add_object("skipped", [&] {
      for (std::size_t reason = 0; reason < kSkipReasons; ++reason) {
        const std::uint64_t count = kind.skipped[reason];
        if (count != 0) out->add(to_string(static_cast<SkipReason>(reason)), count);
      }
    });
    out->add("failed", kind.failed);
  });
}

void add_hints(const Figures& figures, JsonText* out) {
  add_hints_of("prefetches", figures.hints[static_cast<std::size_t>(HintKind::kPrefetch)], out);
  add_hints_of("advice", figures.hints[static_cast<std::size_t>(HintKind::kAdvise)], out);
}

void add_events(const Figures& figures, JsonText* out) {
  const Totals& totals = figures.totals;
  out->add("fences", totals.fences);
  out->add("recalls", totals.recalls);
  if (totals.believed_bytes != 0) {
    out->add_object("compared", [&] {
      out->add("believed_bytes", totals.believed_bytes);
      out->add("real_bytes", totals.real_bytes);
    });
  }
  out->add("pressure_rounds", totals.pressure_rounds);
  out->add("out_of_memory", totals.out_of_memory);
}

void add_driver_calls(const Figures& figures, JsonText* out) {
  out->add_object("driver_calls", [&] {
    for (const auto& [name, count] : figures.calls) out->add(name, count);
  });
}

constexpr std::array kFigureSections = {&add_memory, &add_facades,     &add_unmanaged_host,
                                        &add_moves,  &add_conversions, &add_forks,
                                        &add_hints,  &add_events,      &add_driver_calls};

}  // namespace

MoveStatistics::Copies all_copies(const MoveStatistics& moves) {
  MoveStatistics::Copies all;
  for (const MoveStatistics::Copies& copies : moves.copies) {
    all.count += copies.count;
    all.bytes += copies.bytes;
    all.bytes_at_or_above_threshold += copies.bytes_at_or_above_threshold;
  }
  return all;
}

void add_figures(const Figures& figures, JsonText* out) {
  for (const auto section : kFigureSections) section(figures, out);
}

}  // namespace uvm
