#include "tools/trace/trace_reader.hpp"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <span>
#include <system_error>
#include <type_traits>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>

namespace uvm {
namespace {

std::string contents(const std::string& file) {
  if (std::filesystem::is_directory(file)) {
    throw std::system_error(EISDIR, std::generic_category(), file);
  }
  std::ifstream stream(file, std::ios::binary);
  std::string bytes;
  if (stream) {
    stream.seekg(0, std::ios::end);
    const auto size = stream.tellg();
    stream.seekg(0);
    if (size > 0) bytes.resize(static_cast<std::size_t>(size));
    stream.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }
  if (!stream) throw std::system_error(errno, std::generic_category(), file);
  return bytes;
}

void follow(const TraceEvent& event, std::unordered_set<std::uint64_t>* live) {
  if (event.kind == TraceKind::kAllocate) live->insert(event.address);
  if (event.kind == TraceKind::kFree) live->erase(event.address);
}

// Orders events of several threads at the same time. An event is possible unless it allocates at a
// live address or frees one that is not live. Each step looks at the first remaining event of each
// thread and takes the first possible one or, if there is none, the first one. A step touches two
// threads and one address, so its cost hardly depends on the number of events.
class Simultaneous {
 public:
  Simultaneous(std::span<const ThreadEvent> events, std::unordered_set<std::uint64_t>* live)
      : events_(events), live_(*live), next_of_thread_(events.size(), kNone) {
    std::unordered_map<std::uint32_t, std::size_t> later;
    for (std::size_t i = events.size(); i-- > 0;) {
      auto [found, is_last] = later.try_emplace(events[i].thread, i);
      if (!is_last) next_of_thread_[i] = std::exchange(found->second, i);
    }
    for (auto [thread, first] : later) add(first);
  }

  const ThreadEvent& next() {
    const std::size_t taken = possible_.empty() ? *heads_.begin() : *possible_.begin();
    const ThreadEvent& event = events_[taken];
    heads_.erase(taken);
    if (depends_on_block(event)) {
      Block& block = blocks_[event.address];
      // The event is the first in the set for its kind of event and its block.
      (event.kind == TraceKind::kAllocate ? block.allocations : block.frees).erase(taken);
      follow(event, &live_);
      update(event.address, &block);
    } else {
      possible_.erase(taken);
    }
    if (next_of_thread_[taken] != kNone) add(next_of_thread_[taken]);
    return event;
  }

 private:
  static constexpr std::size_t kNone = ~std::size_t{0};
  // The first remaining events of threads that concern this block, as indexes among the events.
  struct Block {
    std::set<std::size_t> allocations;
    std::set<std::size_t> frees;
    std::size_t possible = kNone;  // the one of these events that is in possible_
  };

  static bool depends_on_block(const TraceEvent& event) {
    return event.kind == TraceKind::kAllocate || event.kind == TraceKind::kFree;
  }

  void add(std::size_t head) {
    const ThreadEvent& event = events_[head];
    heads_.insert(head);
    if (!depends_on_block(event)) {
      possible_.insert(head);
      return;
    }
    Block& block = blocks_[event.address];
    (event.kind == TraceKind::kAllocate ? block.allocations : block.frees).insert(head);
    update(event.address, &block);
  }

  void update(std::uint64_t address, Block* block) {
    if (block->possible != kNone) possible_.erase(block->possible);
    const auto& wanted = live_.contains(address) ? block->frees : block->allocations;
    block->possible = wanted.empty() ? kNone : *wanted.begin();
    if (block->possible != kNone) possible_.insert(block->possible);
  }

  const std::span<const ThreadEvent> events_;
  std::unordered_set<std::uint64_t>& live_;
  std::vector<std::size_t> next_of_thread_;
  std::set<std::size_t> heads_;
  std::set<std::size_t> possible_;
  std::unordered_map<std::uint64_t, Block> blocks_;
};

// Parses the bytes of one file from the beginning.
class Parser {
 public:
  Parser(const std::string& file, UnfinishedTrace unfinished)
      : file_(file), bytes_(contents(file)), unfinished_(unfinished) {}

  Trace parse() {
    parse_header();
    while (!trace_.finished) {
      if (at_ == bytes_.size()) {
        if (unfinished_ == UnfinishedTrace::kAccept) break;
        refuse(at_, "the trace is not finished: the process still runs or was killed (truncated)");
      }
      if (!parse_chunk()) break;
    }
    if (trace_.finished && at_ != bytes_.size()) refuse(at_, "there is more behind the end");
    convert_times();
    return std::move(trace_);
  }

 private:
  [[noreturn]] void refuse(std::size_t offset, const std::string& what) const {
    throw TraceFormatError(file_, offset, what);
  }

  bool has(std::size_t size_bytes) const { return bytes_.size() - at_ >= size_bytes; }

  template <class Value>
  Value take() {
    static_assert(std::is_trivially_copyable_v<Value>);
    Value value;
    std::memcpy(&value, bytes_.data() + at_, sizeof(value));
    at_ += sizeof(value);
    return value;
  }

  void parse_header() {
    constexpr std::size_t kMagicBytes = kTraceMagic.size();
    if (std::memcmp(bytes_.data(), kTraceMagic.data(), std::min(bytes_.size(), kMagicBytes)) != 0) {
      refuse(0, "this is not a trace of uvmalloc");
    }
    if (!has(sizeof(TraceFileHeader)))
      refuse(bytes_.size(), "the file ends in its header (truncated)");
    header_ = take<TraceFileHeader>();
    if (header_.byte_order == 0x04030201) {
      refuse(12, "the trace is from a machine with the other byte order");
    }
    if (header_.byte_order != kTraceByteOrder) refuse(12, "the mark of the byte order is damaged");
    if (header_.version > kTraceVersion) {
      refuse(8, fmt::format("the trace has version {}; this program reads versions up to {}",
                            header_.version, kTraceVersion));
    }
    if (header_.version == 0) refuse(8, "the version is 0");
    if (header_.event_bytes != sizeof(TraceEvent)) refuse(20, "the size of an event is damaged");
    if (header_.device_count > kMostTraceDevices) refuse(60, "the number of devices is damaged");
    const std::uint64_t expected = sizeof(header_) +
                                   header_.device_count * sizeof(TraceFileDevice) +
                                   (std::uint64_t{header_.program_bytes} + 7) / 8 * 8;
    if (header_.header_bytes != expected) refuse(16, "the size of the header is damaged");
    if (bytes_.size() < expected) refuse(bytes_.size(), "the file ends in its header (truncated)");
    if (header_.clock > TraceClockKind::kTicks) refuse(56, "the clock is unknown");
    trace_.process = header_.process;
    trace_.start_time_of_day_ns = header_.start_time_of_day_ns;
    trace_.clock = header_.clock;
    for (std::uint32_t i = 0; i < header_.device_count; ++i) {
      auto device = take<TraceFileDevice>();
      const auto end = std::find(device.name.begin(), device.name.end(), '\0');
      trace_.devices.push_back({std::string(device.name.begin(), end), device.capacity_bytes});
    }
    trace_.program = bytes_.substr(at_, header_.program_bytes);
    at_ = expected;
    last_time_ = header_.start_time;
    last_monotonic_ns_ = header_.start_monotonic_ns;
  }

  // Returns false if the file ends inside the chunk and unfinished traces are accepted.
  bool parse_chunk() {
    const std::size_t start = at_;
    if (!has(sizeof(TraceChunkHeader))) return cut_short(start);
    auto header = take<TraceChunkHeader>();
    switch (header.kind) {
      case TraceChunkKind::kEvents:
        if (header.count > kTraceEventsPerChunk)
          refuse(start + 4, "the number of events is damaged");
        if (!has(header.count * sizeof(TraceEvent))) return cut_short(start);
        for (std::uint32_t i = 0; i < header.count; ++i) add(parse_event(), header.thread);
        break;
      case TraceChunkKind::kPacked: {
        if (header.count > kPackedWordsPerChunk)
          refuse(start + 4, "the number of events is damaged");
        if (header.value > kPackedModelsPerChunk || (header.value == 0 && header.count != 0))
          refuse(start + 16, "the number of models is damaged");
        const std::size_t words = header.count * sizeof(PackedTraceEvent);
        const std::size_t padded = (words + 7) / 8 * 8;
        if (!has(header.value * sizeof(TraceEvent) + padded)) return cut_short(start);
        parse_packed(header);
        at_ += padded - words;
        break;
      }
      case TraceChunkKind::kText: {
        const std::size_t padded = (std::size_t{header.count} + 7) / 8 * 8;
        if (header.count > kMostTraceTextBytes) refuse(start + 4, "the size of a text is damaged");
        if (!has(padded)) return cut_short(start);
        if (header.value != trace_.texts.size() + 1) {
          refuse(start + 16, "the number of a text is damaged");
        }
        trace_.texts.push_back(bytes_.substr(at_, header.count));
        at_ += padded;
        break;
      }
      case TraceChunkKind::kEnd:
        trace_.dropped = header.value;
        trace_.finished = true;
        break;
      default:
        refuse(start, "no chunk starts here");
    }
    if (header.monotonic_ns > last_monotonic_ns_ && header.time > last_time_) {
      last_time_ = header.time;
      last_monotonic_ns_ = header.monotonic_ns;
    }
    return true;
  }

  bool cut_short(std::size_t start) const {
    if (unfinished_ == UnfinishedTrace::kAccept) return false;
    refuse(bytes_.size(),
           fmt::format("the file ends in the chunk that starts at byte {} (truncated)", start));
  }

  void parse_packed(const TraceChunkHeader& header) {
    std::vector<TraceEvent> models;
    for (std::uint64_t i = 0; i < header.value; ++i) models.push_back(parse_event());
    std::uint64_t time = models.empty() ? 0 : models[0].time;
    for (std::uint32_t i = 0; i < header.count; ++i) {
      const std::size_t start = at_;
      const auto word = take<PackedTraceEvent>();
      time += static_cast<std::uint64_t>(word.since_last());
      if (word.is_pause()) continue;
      if (word.model() >= models.size()) {
        refuse(start, fmt::format("an event like number {}, which the chunk lacks", word.model()));
      }
      TraceEvent event = models[word.model()];
      event.time = time;
      if (word.is_free()) event.kind = TraceKind::kFree;
      add(event, header.thread);
    }
  }

  TraceEvent parse_event() {
    const std::size_t start = at_;
    const auto event = take<TraceEvent>();
    const auto kind = static_cast<std::uint8_t>(event.kind);
    if (kind == 0 || kind > kLastTraceKind) {
      refuse(start + 40, fmt::format("an event of the unknown kind {}", kind));
    }
    if (event.facade != kNoFacade && event.facade >= kFacades) {
      refuse(start + 41, fmt::format("an event of the unknown memory kind {}", event.facade));
    }
    const auto devices = static_cast<std::int32_t>(trace_.devices.size());
    if (event.device < kNoPlace || event.device >= devices) {
      refuse(start + 44,
             fmt::format("an event of device {}, which the header lacks", event.device));
    }
    if (event.place < kNoPlace || event.place >= devices) {
      refuse(start + 46, fmt::format("an event at place {}, which the header lacks", event.place));
    }
    return event;
  }

  void add(const TraceEvent& event, std::uint32_t thread) {
    // An event from before the recorder was started again belongs to an earlier trace.
    if (event.time >= header_.start_time) trace_.events.push_back({event, thread});
  }

  void convert_times() {
    double scale = 1;
    if (header_.clock == TraceClockKind::kTicks && last_time_ > header_.start_time) {
      scale = static_cast<double>(last_monotonic_ns_ - header_.start_monotonic_ns) /
              static_cast<double>(last_time_ - header_.start_time);
    }
    order_events(&trace_.events);
    for (ThreadEvent& event : trace_.events) {
      const std::uint64_t since = event.time - header_.start_time;
      event.time =
          scale == 1 ? since
                     : static_cast<std::uint64_t>(std::llround(static_cast<double>(since) * scale));
    }
  }

  static void order_events(std::vector<ThreadEvent>* events) {
    std::stable_sort(events->begin(), events->end(),
                     [](const auto& left, const auto& right) { return left.time < right.time; });
    std::unordered_set<std::uint64_t> live;
    std::span<ThreadEvent> rest(*events);
    while (!rest.empty()) {
      std::size_t same = 1;
      bool threads_differ = false;
      while (same < rest.size() && rest[same].time == rest[0].time) {
        threads_differ = threads_differ || rest[same].thread != rest[0].thread;
        ++same;
      }
      if (threads_differ) {
        order_simultaneous(rest.first(same), &live);
      } else {
        for (const ThreadEvent& event : rest.first(same)) follow(event, &live);
      }
      rest = rest.subspan(same);
    }
  }

  static void order_simultaneous(std::span<ThreadEvent> events,
                                 std::unordered_set<std::uint64_t>* live) {
    Simultaneous order(events, live);
    std::vector<ThreadEvent> ordered;
    ordered.reserve(events.size());
    while (ordered.size() < events.size()) ordered.push_back(order.next());
    std::copy(ordered.begin(), ordered.end(), events.begin());
  }

  const std::string& file_;
  const std::string bytes_;
  const UnfinishedTrace unfinished_;
  std::size_t at_ = 0;
  TraceFileHeader header_;
  std::uint64_t last_time_ = 0;
  std::uint64_t last_monotonic_ns_ = 0;
  Trace trace_;
};

}  // namespace

TraceFormatError::TraceFormatError(const std::string& file, std::uint64_t offset,
                                   const std::string& what)
    : std::runtime_error(fmt::format("{}: at byte {}: {}", file, offset, what)), offset_(offset) {}

std::string Trace::text(const TraceEvent& event) const {
  const bool has_text = event.kind == TraceKind::kMark || event.kind == TraceKind::kFailure ||
                        event.kind == TraceKind::kSite;
  return has_text && event.extra >= 1 && event.extra <= texts.size() ? texts[event.extra - 1] : "";
}

Trace read_trace(const std::string& file, UnfinishedTrace unfinished) {
  return Parser(file, unfinished).parse();
}

}  // namespace uvm
