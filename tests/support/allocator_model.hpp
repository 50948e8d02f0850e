// A caching allocator in the simplest form: a map of live blocks, a list of freed ranges that
// streams still work on, and sums. The model has no pools, pages or caches. If the allocator has a
// choice, the model states the limits of that choice.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <tuple>
#include <vector>

#include <fmt/format.h>

#include "allocator/interface.hpp"

#include "tests/support/sizes.hpp"

namespace uvm::testing {

class ModelError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

template <class... Arguments>
void expect(bool holds, fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  if (!holds) throw ModelError(fmt::format(format, std::forward<Arguments>(arguments)...));
}

class AllocatorModel {
 public:
  explicit AllocatorModel(int devices) : places_(kFacades * static_cast<std::size_t>(devices)) {}

  using PrivatePool = std::pair<int, std::uint64_t>;  // device and id; an id of 0 means none
  struct Live {
    Facade facade;
    int device;
    StreamHandle stream;  // device facade only
    std::size_t size_bytes;
    std::size_t requested_bytes;
    std::uint8_t mark;                // in its first, middle and last byte
    std::set<StreamHandle> users;     // streams that may have work on the block
    std::vector<MovedStorage*> held;  // records of moves
    std::set<Place> unheld;           // places with a record that nobody releases
    Place location;
    Place newest_device = {};      // of the last move to a device, if any
    std::set<Place> used_at = {};  // places in use: no move has ended the use
    bool exported = false;
    std::size_t alignment_bytes = 0;  // requested; 0 means the default
    PrivatePool pool{};
  };
  // The memory kind, device and stream that count a block in their figures.
  struct Charge {
    Facade facade;
    int device;
    StreamHandle stream;
    bool operator==(const Charge&) const = default;
  };
  using Blocks = std::map<char*, Live>;
  Blocks live;

  static bool is_whole(Facade facade, std::size_t bytes) {
    return facade != Facade::kDevice && bytes >= 1u << 20;
  }
  // Returns the unit: blocks begin and end at multiples of it.
  static std::size_t unit_of(Facade facade, std::size_t bytes) {
    if (is_whole(facade, bytes)) return kPage;
    static const auto kHostPage = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    return facade == Facade::kPinned && bytes > 4096 ? kHostPage : 512;
  }
  static std::size_t rounded(Facade facade, std::size_t bytes) {
    const std::size_t unit = unit_of(facade, bytes);
    return (bytes + unit - 1) / unit * unit;
  }

  // Returns the live block that holds the address, or live.end().
  Blocks::iterator find(char* address) {
    auto after = live.upper_bound(address);
    if (after == live.begin()) return live.end();
    auto at = std::prev(after);
    return address < at->first + at->second.size_bytes ? at : live.end();
  }

  // Records a block that the allocator gave out while `busy` streams had work. The work of
  // `earlier` streams ends before the block's stream begins to use the block.
  void allocated(char* base, Live block, const std::set<StreamHandle>& busy,
                 const std::set<StreamHandle>& earlier) {
    std::size_t least = rounded(block.facade, block.requested_bytes);
    const bool aligned = block.alignment_bytes > 512;
    const bool whole = is_whole(block.facade, block.requested_bytes);
    // An aligned block or a block of a private pool is never a small object.
    if (aligned || block.pool.second != 0) least = std::max<std::size_t>(least, 4096 + 512);
    const bool exact = whole || least <= 4096;
    const auto address = reinterpret_cast<std::uintptr_t>(base);
    const std::size_t unit = unit_of(block.facade, block.requested_bytes);
    expect(address % std::max(block.alignment_bytes, unit) == 0, "a block of {} is not aligned",
           block.requested_bytes);
    // A large device request may get the whole pages of a displaced block.
    const bool may_be_displaced =
        block.facade == Facade::kDevice && block.requested_bytes >= 1u << 20;
    // An aligned request may get whole pages, too; outside device memory it always does.
    const bool has_pages = may_be_displaced || (aligned && block.facade != Facade::kDevice);
    const std::size_t rest = std::max({4096 + 512ul, unit, std::min(least / 32, kPage / 4)}) - 1;
    const std::size_t most =
        std::max(least + (exact ? 0 : rest), has_pages ? (least + kPage - 1) / kPage * kPage : 0);
    expect(block.size_bytes >= least && block.size_bytes <= most, "{} bytes were rounded to {}",
           block.requested_bytes, block.size_bytes);
    auto next = live.lower_bound(base);
    expect(next == live.end() || base + block.size_bytes <= next->first,
           "a block overlaps the next");
    expect(
        next == live.begin() || std::prev(next)->first + std::prev(next)->second.size_bytes <= base,
        "a block overlaps the one before");
    settle(busy);
    for (const Pending& range : pending_) {
      if (base + block.size_bytes <= range.begin || range.end <= base) continue;
      for (StreamHandle user : range.users) {
        expect(block.facade == Facade::kDevice && earlier.contains(user),
               "a block is used again while stream {} works on it", user);
      }
    }
    for (const auto& [pool, ranges] : private_ranges_) {
      if (pool == block.pool) continue;
      expect(std::none_of(ranges.begin(), ranges.end(),
                          [&](const auto& range) {
                            return base < range.second && range.first < base + block.size_bytes;
                          }),
             "memory of private pool {} is given to others", pool.second);
    }
    if (block.pool.second != 0) {
      private_ranges_[block.pool].insert({base, base + block.size_bytes});
    }
    if (block.facade == Facade::kDevice) block.users.insert(block.stream);
    block.used_at = {origin_of(block)};
    count(block, 1);
    live.emplace(base, std::move(block));
  }

  void freed(Blocks::iterator at, const std::set<StreamHandle>& busy) {
    Pending range{at->first, at->first + at->second.size_bytes, at->second.users};
    pending_.push_back(std::move(range));
    settle(busy);
    count(at->second, -1);
    live.erase(at);
  }

  static Place origin_of(const Live& block) {
    return block.facade == Facade::kDevice ? Place::device(block.device) : Place::host();
  }
  // Returns the figures that count the block: those of the device that uses the block, or of the
  // host if no device does. If several devices use the block, the device of the last move counts.
  // Small objects share their pages, so the figures of their pool count them.
  static Charge charge_of(const Live& block) {
    const Charge own{block.facade, block.device, block.stream};
    if (block.size_bytes <= 4096 && block.pool.second == 0) return own;
    std::optional<Place> device;
    for (Place place : block.used_at) {
      if (place.is_device() && (!device || place == block.newest_device)) device = place;
    }
    const Place place = device.value_or(Place::host());
    if (place == origin_of(block)) return own;
    return device ? Charge{Facade::kDevice, place.index, nullptr}
                  : Charge{Facade::kHost, block.device, nullptr};
  }
  // Applies a change of the block's uses, and moves the block to the figures that now count it.
  template <class Change>
  void change_uses(Live* block, Change change) {
    const Charge before = charge_of(*block);
    change();
    const Charge after = charge_of(*block);
    if (after == before) return;
    count_at(before, *block, -1);
    count_at(after, *block, 1);
  }

  // Forgets work that is over: only `busy` streams have work. Runs after every call, because a
  // stream that is busy later has other work.
  void settle(const std::set<StreamHandle>& busy) {
    for (Pending& range : pending_) {
      std::erase_if(range.users, [&](StreamHandle user) { return !busy.contains(user); });
    }
    std::erase_if(pending_, [](const Pending& range) { return range.users.empty(); });
  }

  // `stream` is destroyed, and its handle may name another stream. From now on, `gone` stands for
  // the remaining work of `stream`.
  void retired(StreamHandle stream, StreamHandle gone) {
    auto rename = [&](std::set<StreamHandle>* users) {
      if (users->erase(stream) != 0) users->insert(gone);
    };
    for (auto& [base, block] : live) rename(&block.users);
    for (Pending& range : pending_) rename(&range.users);
    one_pool_per_stream_ = false;
  }

  // A stream may get memory from a private pool.
  void private_pool_is_open() { one_pool_per_stream_ = false; }
  // From now on, any stream may get the pool's memory.
  void private_pool_is_gone(const PrivatePool& pool) { private_ranges_.erase(pool); }

  void reset_peaks(Facade facade, int device) {
    for (Sums& sums : places_[place_of(facade, device)]) sums.peak = sums.now;
  }
  void reset_totals(Facade facade, int device) {
    for (Sums& sums : places_[place_of(facade, device)]) sums.up = sums.down = {};
  }

  // `one_thread`: no stream was used by two threads.
  void check(const Statistics& now, bool one_thread) const {
    std::int64_t live_bytes = 0;
    for (std::size_t facade = 0; facade < kFacades; ++facade) {
      for (std::size_t device = 0; device < now.classes[facade].size(); ++device) {
        const auto& place = places_[facade * now.classes[facade].size() + device];
        for (std::size_t of = 0; of <= kSizeClasses; ++of) {
          const ClassStatistics& figures = now.classes[facade][device][of];
          const char* const name = to_string(static_cast<Facade>(facade));
          check_gauge(figures.allocations, place[of], 0, name);
          check_gauge(figures.allocated_bytes, place[of], 1, name);
          check_gauge(figures.requested_bytes, place[of], 2, name);
          check_active(figures.active_blocks, place[of], 0);
          check_active(figures.active_bytes, place[of], 1);
        }
        live_bytes += place[kSizeClasses].now[1];
      }
    }
    expect(now.live_bytes.current == static_cast<std::uint64_t>(live_bytes),
           "{} bytes are live, not {}", live_bytes, now.live_bytes.current);
    expect(now.live_bytes.peak == static_cast<std::uint64_t>(peak_live_bytes_),
           "the peak of live bytes is {}, not {}", peak_live_bytes_, now.live_bytes.peak);
    check_streams(now, one_thread);
  }

 private:
  void check_streams(const Statistics& now, bool one_thread) const {
    if (!one_pool_per_stream_) return check_streams_together(now);
    for (const StreamStatistics& stream : now.streams) {
      auto found = streams_.find({stream.facade, stream.device, stream.stream});
      const StreamSums sums = found == streams_.end() ? StreamSums{} : found->second;
      expect(stream.live_bytes == sums.live_bytes && stream.allocations == sums.blocks &&
                 stream.allocated_bytes == sums.bytes,
             "stream {:x}: {} live of {} in {} blocks, not {} of {} in {}", stream.stream,
             sums.live_bytes, sums.bytes, sums.blocks, stream.live_bytes, stream.allocated_bytes,
             stream.allocations);
      expect(
          one_thread ? stream.peak_bytes == sums.peak_bytes : stream.peak_bytes >= sums.peak_bytes,
          "stream {:x}: peak {}, not {}", stream.stream, sums.peak_bytes, stream.peak_bytes);
    }
  }

  // Compares sums over all streams only. The next stream takes the pools of a destroyed stream, and
  // private pools have their own figures.
  void check_streams_together(const Statistics& now) const {
    StreamSums wanted;
    for (const auto& [key, sums] : streams_) wanted.add(sums.live_bytes, sums.blocks, sums.bytes);
    StreamSums seen;
    for (const StreamStatistics& stream : now.streams) {
      seen.add(stream.live_bytes, stream.allocations, stream.allocated_bytes);
    }
    expect(seen.live_bytes == wanted.live_bytes && seen.blocks == wanted.blocks &&
               seen.bytes == wanted.bytes,
           "all streams: {} live of {} in {} blocks, not {} of {} in {}", wanted.live_bytes,
           wanted.bytes, wanted.blocks, seen.live_bytes, seen.bytes, seen.blocks);
  }

  static constexpr std::size_t kPage = 2 * kMiB;
  using Figures = std::array<std::int64_t, 3>;  // blocks, bytes, requested bytes
  struct Sums {
    Figures now{}, peak{}, up{}, down{};
  };
  struct StreamSums {
    std::int64_t live_bytes = 0;
    std::int64_t peak_bytes = 0;
    std::uint64_t blocks = 0;
    std::uint64_t bytes = 0;
    void add(std::int64_t more_live_bytes, std::uint64_t more_blocks, std::uint64_t more_bytes) {
      live_bytes += more_live_bytes;
      blocks += more_blocks;
      bytes += more_bytes;
    }
  };
  struct Pending {
    char* begin;
    char* end;
    std::set<StreamHandle> users;  // busy at the free, and still busy
  };

  std::size_t place_of(Facade facade, int device) const {
    return static_cast<std::size_t>(facade) * (places_.size() / kFacades) +
           static_cast<std::size_t>(device);
  }

  void count(const Live& block, std::int64_t sign) { count_at(charge_of(block), block, sign); }
  void count_at(const Charge& charge, const Live& block, std::int64_t sign) {
    const Figures amounts{1, static_cast<std::int64_t>(block.size_bytes),
                          static_cast<std::int64_t>(block.requested_bytes)};
    std::size_t size_class = block.size_bytes <= 4096 ? 0 : 1;
    for (std::size_t of : {size_class, kSizeClasses}) {
      Sums& sums = places_[place_of(charge.facade, charge.device)][of];
      for (std::size_t figure = 0; figure < amounts.size(); ++figure) {
        sums.now[figure] += sign * amounts[figure];
        sums.peak[figure] = std::max(sums.peak[figure], sums.now[figure]);
        (sign > 0 ? sums.up : sums.down)[figure] += amounts[figure];
      }
    }
    live_bytes_ += sign * amounts[1];
    peak_live_bytes_ = std::max(peak_live_bytes_, live_bytes_);
    StreamSums& stream =
        streams_[{charge.facade, charge.device, reinterpret_cast<std::uintptr_t>(charge.stream)}];
    stream.add(sign * amounts[1], sign > 0 ? 1 : 0, sign > 0 ? block.size_bytes : 0);
    stream.peak_bytes = std::max(stream.peak_bytes, stream.live_bytes);
  }

  static void check_gauge(const Gauge& gauge, const Sums& sums, std::size_t figure,
                          const char* facade) {
    const Gauge wanted{
        static_cast<std::uint64_t>(sums.now[figure]), static_cast<std::uint64_t>(sums.peak[figure]),
        static_cast<std::uint64_t>(sums.up[figure]), static_cast<std::uint64_t>(sums.down[figure])};
    expect(gauge.current == wanted.current && gauge.peak == wanted.peak &&
               gauge.increased == wanted.increased && gauge.decreased == wanted.decreased,
           "{} facade, figure {}: {} peak {} +{} -{}, not {} peak {} +{} -{}", facade, figure,
           wanted.current, wanted.peak, wanted.increased, wanted.decreased, gauge.current,
           gauge.peak, gauge.increased, gauge.decreased);
  }

  // Active blocks may include blocks behind fences, which the model does not follow.
  static void check_active(const Gauge& gauge, const Sums& sums, std::size_t figure) {
    const auto current = static_cast<std::uint64_t>(sums.now[figure]);
    expect(gauge.current >= current && gauge.current < current + (std::uint64_t{1} << 48),
           "{} active where {} are live", gauge.current, current);
    expect(gauge.peak >= static_cast<std::uint64_t>(sums.peak[figure]),
           "a peak of {} active where {} were live", gauge.peak, sums.peak[figure]);
  }

  std::vector<std::array<Sums, kSizeClasses + 1>> places_;
  std::map<std::tuple<Facade, int, std::uintptr_t>, StreamSums> streams_;
  std::vector<Pending> pending_;
  std::map<PrivatePool, std::set<std::pair<char*, char*>>> private_ranges_;  // [begin, end)
  bool one_pool_per_stream_ = true;
  std::int64_t live_bytes_ = 0;
  std::int64_t peak_live_bytes_ = 0;
};

}  // namespace uvm::testing
