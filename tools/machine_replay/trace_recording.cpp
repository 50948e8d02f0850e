#include "tools/machine_replay/trace_recording.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <stdexcept>
#include <unordered_map>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "sim/engine/units.hpp"

namespace uvm::machine_replay {
namespace {

using uvmsim::kBlockBytes;
using uvmsim::kPageBytes;
using uvmsim::kPagesPerBlock;
using uvmsim::PageRange;
using uvmsim::replay::Event;
using uvmsim::replay::EventKind;
using uvmsim::replay::Recording;
using uvmsim::replay::Touch;

constexpr std::uint8_t kBothAccesses = 3;
// No machine has more memory than this.
constexpr std::uint64_t kMostRangeBytes = std::uint64_t{1} << 46;

class Builder {
 public:
  explicit Builder(const Trace& trace) : trace_(trace) {
    recording_.device_count = std::max<int>(1, static_cast<int>(trace.devices.size()));
  }

  Recording build() {
    number_blocks();
    for (index_ = 0; index_ < trace_.events.size(); ++index_) add(trace_.events[index_]);
    for (const auto& [thread, kernel] : open_)
      throw std::invalid_argument(
          fmt::format("event {}: a kernel of {} touches has only {}; accepted: a trace that ends "
                      "between kernels",
                      kernel.trace_event, kernel.wanted, kernel.touches.size()));
    if (!has_kernels_)
      throw std::invalid_argument(
          "the trace has no kernels; accepted: one that a program wrote on a simulated device");
    recording_.signal_count = signals_.size();
    recording_.allocation_count = allocations_;
    return std::move(recording_);
  }

 private:
  struct OpenKernel {
    std::size_t trace_event;
    std::size_t event;  // its index in the recording
    std::size_t wanted;
    std::vector<Touch> touches;
  };
  struct LiveBlock {
    std::uint64_t size_bytes;
    std::uint32_t number;
  };

  [[noreturn]] void refuse(const std::string& what, const std::string& accepted) const {
    throw std::invalid_argument(fmt::format("event {}: {}; accepted: {}", index_, what, accepted));
  }

  // Numbers all 2 MiB blocks that hold an allocation, in the order of their addresses. Hints may
  // cover more blocks, because the allocator advises whole reserved spans.
  void number_blocks() {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
    for (index_ = 0; index_ < trace_.events.size(); ++index_) {
      const ThreadEvent& event = trace_.events[index_];
      if (event.kind != TraceKind::kAllocate || event.size_bytes == 0) continue;
      if (event.size_bytes > kMostRangeBytes || event.address > ~std::uint64_t{0} - kMostRangeBytes)
        refuse(fmt::format("a range of {} bytes", event.size_bytes), "at most 64 TiB");
      ranges.emplace_back(event.address / kBlockBytes,
                          (event.address + event.size_bytes - 1) / kBlockBytes + 1);
    }
    std::ranges::sort(ranges);
    std::uint64_t next = 0;
    for (const auto& [first, last] : ranges) {
      for (std::uint64_t block = std::max(first, next); block < last; ++block)
        recording_.block_addresses.push_back(block * kBlockBytes);
      next = std::max(next, last);
    }
  }

  PageRange pages_of(std::uint64_t address, std::uint64_t size_bytes) const {
    const auto& blocks = recording_.block_addresses;
    const auto found = std::prev(std::ranges::upper_bound(blocks, address));
    const auto number = static_cast<std::size_t>(found - blocks.begin());
    const std::size_t base = number * kPagesPerBlock;
    const std::uint64_t offset = address - *found;
    return {base + offset / kPageBytes, base + (offset + size_bytes + kPageBytes - 1) / kPageBytes};
  }

  // Returns the pages at the addresses [first, last), if their blocks are in the recording.
  PageRange known_pages(std::uint64_t first, std::uint64_t last) const {
    const auto& blocks = recording_.block_addresses;
    const auto begin = std::ranges::lower_bound(blocks, first / kBlockBytes * kBlockBytes);
    const auto end = std::ranges::lower_bound(blocks, last);
    if (begin == end) return {0, 0};
    const auto page_of = [&](auto block, std::uint64_t offset) {
      return static_cast<std::size_t>(block - blocks.begin()) * kPagesPerBlock +
             std::min<std::uint64_t>(offset, kBlockBytes) / kPageBytes;
    };
    const auto final = std::prev(end);
    return {page_of(begin, first > *begin ? first - *begin : 0),
            page_of(final, last - *final + kPageBytes - 1)};
  }

  std::uint32_t stream_of(const TraceEvent& event) {
    const int device = std::max<int>(event.device, 0);
    const auto [found, added] = streams_.try_emplace(
        {device, event.stream}, static_cast<std::uint32_t>(recording_.streams.size()));
    if (added) recording_.streams.push_back({device});
    return found->second;
  }

  std::uint32_t signal_of(const TraceEvent& event) {
    return signals_.try_emplace(event.address, static_cast<std::uint32_t>(signals_.size()))
        .first->second;
  }

  Event begin(EventKind kind, const ThreadEvent& from) {
    Event event;
    event.kind = kind;
    event.device = std::max<int>(from.device, 0);
    event.recorded_ns = from.time;
    return event;
  }

  void push(Event event) { recording_.events.push_back(event); }

  void add(const ThreadEvent& from) {
    switch (from.kind) {
      case TraceKind::kAllocate:
        return allocate(from);
      case TraceKind::kFree:
        return free(from);
      case TraceKind::kAdvise:
      case TraceKind::kPrefetch:
      case TraceKind::kDiscard:
        return hint(from);
      case TraceKind::kKernel:
        return kernel(from);
      case TraceKind::kTouch:
        return touch(from);
      case TraceKind::kSignal:
      case TraceKind::kWait:
        return order(from);
      case TraceKind::kMark:
        recording_.marks.push_back({recording_.events.size(), trace_.text(from)});
        return push(begin(EventKind::kMark, from));
      case TraceKind::kMove:
      case TraceKind::kUse:
      case TraceKind::kStream:
      case TraceKind::kFailure:
      case TraceKind::kSite:
        return;
    }
  }

  void allocate(const ThreadEvent& from) {
    if (from.size_bytes == 0) return;
    const auto number = static_cast<std::uint32_t>(allocations_++);
    live_[from.address] = {from.size_bytes, number};
    Event event = begin(EventKind::kAllocate, from);
    event.block = number;
    event.pages = pages_of(from.address, from.size_bytes);
    event.amount = from.size_bytes;
    push(event);
  }

  void free(const ThreadEvent& from) {
    const auto found = live_.find(from.address);
    if (found == live_.end()) return;
    Event event = begin(EventKind::kFree, from);
    event.block = found->second.number;
    event.pages = pages_of(from.address, found->second.size_bytes);
    event.amount = found->second.size_bytes;
    live_.erase(found);
    push(event);
  }

  void hint(const ThreadEvent& from) {
    const std::uint64_t end = from.address + from.size_bytes;
    std::uint64_t first = from.address;
    std::uint64_t last = end;
    Event event = begin(EventKind::kPrefetch, from);
    if (from.kind == TraceKind::kAdvise) {
      if (from.detail < 1 || from.detail > 6) refuse("an unknown advice", "1 to 6");
      event.kind = EventKind::kAdvise;
      event.advice = static_cast<uvmsim::Advice>(from.detail);
    } else {
      event.stream = stream_of(from);
    }
    // Rounds like the driver: a discard only affects whole pages.
    if (from.kind == TraceKind::kDiscard) {
      event.kind = EventKind::kDiscard;
      first = (from.address + kPageBytes - 1) / kPageBytes * kPageBytes;
      last = end / kPageBytes * kPageBytes;
    }
    if (first >= last) return;
    event.location = from.place;
    event.pages = known_pages(first, last);
    event.amount = (last - 1) / kBlockBytes + 1 - first / kBlockBytes;
    const bool is_known = event.pages.first < event.pages.last;
    if (is_known || event.kind == EventKind::kAdvise) push(event);
  }

  void kernel(const ThreadEvent& from) {
    Event event = begin(EventKind::kKernel, from);
    event.stream = stream_of(from);
    event.amount = from.size_bytes;
    switch (from.detail) {
      case kTraceFixedTime:
        event.is_timed = true;
        break;
      case kTraceCopyToDevice:
      case kTraceCopyToHost:
      case kTraceCopyInside:
        event.kind = EventKind::kCopy;
        event.way = from.detail == kTraceCopyInside   ? uvmsim::CopyWay::kInside
                    : from.detail == kTraceCopyToHost ? uvmsim::CopyWay::kToHost
                                                      : uvmsim::CopyWay::kToDevice;
        break;
      default:
        if (from.detail >= kTraceOperationTypes)
          refuse(fmt::format("a kernel of the unknown type {}", from.detail), "0 to 4, 252 to 255");
        event.type = static_cast<uvmsim::OperationType>(from.detail);
    }
    has_kernels_ = true;
    if (const auto before = open_.find(from.thread); before != open_.end())
      refuse(fmt::format("a kernel before the touches of the last one, at event {}",
                         before->second.trace_event),
             "as many touches as the kernel says");
    push(event);
    if (from.extra != 0)
      open_[from.thread] = {index_, recording_.events.size() - 1, from.extra, {}};
  }

  void touch(const ThreadEvent& from) {
    const auto found = open_.find(from.thread);
    if (found == open_.end()) refuse("a touch without a kernel", "touches after their kernel");
    if (from.detail == 0 || from.detail > kBothAccesses)
      refuse(fmt::format("a touch of the unknown access {}", from.detail), "1, 2, 3");
    OpenKernel& open = found->second;
    if (const auto known = known_touch(from)) {
      open.touches.push_back(*known);
    } else {
      --open.wanted;
      if (from.size_bytes != 0) ++recording_.unknown_touches;
      recording_.events[open.event].other_bytes +=
          uvmsim::moved_bytes(from.size_bytes, from.detail);
    }
    if (open.touches.size() < open.wanted) return;
    Event& event = recording_.events[open.event];
    event.first_touch = static_cast<std::uint32_t>(recording_.touches.size());
    event.touch_count = static_cast<std::uint32_t>(open.touches.size());
    std::ranges::copy(open.touches, std::back_inserter(recording_.touches));
    open_.erase(found);
  }

  // Returns the touch of a range in a live block, or nothing for other memory.
  std::optional<Touch> known_touch(const ThreadEvent& from) const {
    if (from.size_bytes == 0) return std::nullopt;
    const auto next = live_.upper_bound(from.address);
    if (next == live_.begin()) return std::nullopt;
    const auto& [address, block] = *std::prev(next);
    if (from.address - address >= block.size_bytes) return std::nullopt;
    const std::uint64_t rest = block.size_bytes - (from.address - address);
    return Touch{pages_of(from.address, std::min(from.size_bytes, rest)), from.size_bytes,
                 from.detail, block.number};
  }

  void order(const ThreadEvent& from) {
    Event event = begin(EventKind::kSignal, from);
    if (from.kind == TraceKind::kWait) {
      if (from.detail > kLastTraceWait)
        refuse(fmt::format("a wait of the unknown kind {}", from.detail), "0 to 3");
      constexpr EventKind kKinds[] = {EventKind::kStreamWait, EventKind::kHostWait,
                                      EventKind::kHostWaitStream, EventKind::kHostWaitDevice};
      event.kind = kKinds[from.detail];
    }
    if (event.kind != EventKind::kHostWaitDevice) event.stream = stream_of(from);
    if (event.kind == EventKind::kSignal || event.kind == EventKind::kStreamWait ||
        event.kind == EventKind::kHostWait)
      event.signal = signal_of(from);
    push(event);
  }

  const Trace& trace_;
  Recording recording_;
  std::size_t index_ = 0;
  std::size_t allocations_ = 0;
  bool has_kernels_ = false;
  std::map<std::uint64_t, LiveBlock> live_;
  std::map<std::pair<int, std::uint64_t>, std::uint32_t> streams_;
  std::unordered_map<std::uint64_t, std::uint32_t> signals_;
  std::unordered_map<std::uint32_t, OpenKernel> open_;  // by thread
};

}  // namespace

uvmsim::replay::Recording recording_of(const Trace& trace) {
  return Builder(trace).build();
}

}  // namespace uvm::machine_replay
