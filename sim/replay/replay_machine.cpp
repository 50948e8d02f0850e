#include "sim/replay/replay_machine.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <stdexcept>
#include <utility>

#include "sim/engine/device_memory.hpp"
#include "sim/engine/host_memory.hpp"
#include "sim/engine/residency.hpp"
#include "sim/engine/span_map.hpp"
#include "sim/engine/timeline.hpp"
#include "sim/engine/units.hpp"
#include "sim/replay/event_time.hpp"

namespace uvmsim::replay {
namespace {

uvmsim_counters difference(const uvmsim_counters& now, const uvmsim_counters& before) {
  constexpr std::size_t kCount = sizeof(uvmsim_counters) / sizeof(std::uint64_t);
  using Words = std::array<std::uint64_t, kCount>;
  auto left = std::bit_cast<Words>(now);
  const auto right = std::bit_cast<Words>(before);
  for (std::size_t i = 0; i < kCount; ++i) left[i] -= right[i];
  return std::bit_cast<uvmsim_counters>(left);
}

std::vector<DeviceMemory> memories_of(const Recording& recording, const MachineProfile& profile) {
  std::vector<DeviceMemory> memories;
  for (int device = 0; device < recording.device_count; ++device)
    memories.emplace_back(device, profile.capacity_bytes).open_context();
  return memories;
}

// Checks all pages once; streams and signals are checked at their use.
void check_pages(const Recording& recording) {
  const auto is_inside = [&](const PageRange& pages) {
    return pages.first <= pages.last && pages.last <= recording.page_count();
  };
  const bool is_usable =
      recording.device_count >= 1 &&
      std::ranges::all_of(recording.touches,
                          [&](const Touch& touch) { return is_inside(touch.pages); }) &&
      std::ranges::all_of(recording.events, [&](const Event& event) {
        return is_inside(event.pages) && event.device >= 0 &&
               event.device < recording.device_count && event.location < recording.device_count;
      });
  if (!is_usable)
    throw std::invalid_argument("the recording names a page or a device that it lacks");
}

class Run final : public Hints {
 public:
  Run(const Recording& recording, const MachineProfile& profile, HintPolicy& policy)
      : recording_(recording),
        policy_(policy),
        costs_(profile.costs, profile.rules.faults.batch_faults, profile.rules.thrashing.lapse_ns),
        memories_(memories_of(recording, profile)),
        host_(profile.rules.memory.host_bytes),
        residency_(
            recording.block_addresses.size(), memories_, host_, counters_,
            [](int, int) { return false; }, [](std::size_t) { return ~PageMask{}; }, profile.rules),
        timeline_(recording.device_count, static_cast<std::uint64_t>(profile.costs.query_ns)),
        advice_(std::max<std::size_t>(recording.page_count(), 1)),
        signals_(recording.signal_count),
        call_ns_(static_cast<std::uint64_t>(profile.costs.call_ns)) {
    for (const Recording::Stream& stream : recording.streams) add_stream(stream.device);
  }

  Outcome go(const RunOptions& options) {
    outcome_.blocks.resize(std::max<std::size_t>(recording_.allocation_count, 1));
    policy_.start(recording_);
    begin_step("");
    for (std::size_t index = 0; index < recording_.events.size(); ++index) {
      const Event& event = recording_.events[index];
      policy_.before(index, *this);
      if (is_hint(event.kind) && !policy_.keeps_recorded_hints()) continue;
      if (const Status status = handle(index, event); status != Status::kOk) {
        outcome_.failure = "event " + std::to_string(index) + " finds no memory on " +
                           (status == Status::kOutOfMemory ? "the device or the host" : "it");
        break;
      }
      if (options.sample_every != 0 && index % options.sample_every == 0) sample(index);
    }
    end_step();
    outcome_.duration_ns = timeline_.now_ns();
    outcome_.counters = counters_;
    for (const DeviceMemory& memory : memories_) outcome_.peak_bytes.push_back(memory.peak_bytes());
    return std::move(outcome_);
  }

  // ---- for policies

  std::uint32_t side_stream(int device, unsigned number) override {
    const auto [found, added] = side_streams_.try_emplace({device, number}, 0);
    if (added) found->second = add_stream(device);
    return found->second;
  }

  void prefetch(std::uint32_t stream, PageRange pages, int location) override {
    ++counters_.prefetch_calls;
    Status status = Status::kOk;
    advice_.visit(pages.first, pages.last,
                  [&](std::size_t first, std::size_t last, const Policy& policy) {
                    if (status == Status::kOk)
                      status = residency_.prefetch(location, {first, last}, policy);
                  });
    submit(stream, costs_.phases(residency_.take_work()));
  }

  void discard(std::uint32_t stream, PageRange pages) override {
    ++counters_.discard_calls;
    const std::uint64_t blocks = residency_.populated_blocks(pages);
    residency_.discard(pages);
    submit(stream, costs_.discard_phases(blocks));
  }

  void advise(PageRange pages, Advice advice, int location) override {
    ++counters_.advice_calls;
    timeline_.run_exclusively(costs_.advice_ns(residency_.populated_blocks(pages)));
    residency_.advise(&advice_, 0, pages, advice, location);
  }

  void copy(std::uint32_t stream, std::uint64_t bytes, CopyWay way) override {
    ++counters_.copy_calls;
    counters_.copy_bytes += bytes;
    submit(stream, costs_.copy_phases({}, bytes, way));
  }

  void wait(std::uint32_t stream, std::uint32_t other) override { wait_for(stream, record(other)); }
  std::uint32_t record(std::uint32_t stream) override {
    recorded_.push_back(RuntimeEvent{.device = streams_.at(stream)->device});
    timeline_.record(recorded_.back(), *streams_.at(stream));
    return static_cast<std::uint32_t>(recorded_.size() - 1);
  }
  void wait_for(std::uint32_t stream, std::uint32_t recorded) override {
    timeline_.wait(*streams_.at(stream), recorded_.at(recorded));
  }
  void host_wait_for(std::uint32_t recorded) override {
    timeline_.wait_until(recorded_.at(recorded).time_ns);
  }

  std::size_t resident_pages(PageRange pages, int location) const override {
    return residency_.resident_pages(location, pages.first, pages.last - pages.first);
  }
  std::size_t usable_bytes(int device) const override {
    const DeviceMemory& memory = memories_.at(static_cast<std::size_t>(device));
    return memory.capacity_bytes() - memory.unevictable_bytes();
  }
  std::size_t free_bytes(int device) const override {
    return memories_.at(static_cast<std::size_t>(device)).free_bytes();
  }
  std::uint64_t now_ns() const override { return timeline_.now_ns(); }

 private:
  using RuntimeEvent = uvmsim::Event;

  std::uint32_t add_stream(int device) {
    if (device < 0 || device >= recording_.device_count)
      throw std::invalid_argument("a stream of device " + std::to_string(device) +
                                  ", which the recording lacks");
    streams_.push_back(timeline_.find_stream(device, timeline_.create_stream(device, 0, false, 0)));
    return static_cast<std::uint32_t>(streams_.size() - 1);
  }

  void submit(std::uint32_t stream, const Phases& phases) {
    timeline_.advance(call_ns_);
    timeline_.submit(*streams_.at(stream), phases);
  }

  Status handle(std::size_t index, const Event& event) {
    switch (event.kind) {
      case EventKind::kKernel:
        return run_kernel(event);
      case EventKind::kCopy:
        return run_copy(event);
      case EventKind::kAllocate:
      case EventKind::kFree:
        return Status::kOk;
      case EventKind::kAdvise:
        advise(event.pages, event.advice, event.location);
        return Status::kOk;
      case EventKind::kPrefetch:
        prefetch(event.stream, event.pages, event.location);
        return Status::kOk;
      case EventKind::kDiscard:
        discard(event.stream, event.pages);
        return Status::kOk;
      case EventKind::kSignal:
        timeline_.record(signals_.at(event.signal), *streams_.at(event.stream));
        return Status::kOk;
      case EventKind::kStreamWait:
        timeline_.wait(*streams_.at(event.stream), signals_.at(event.signal));
        return Status::kOk;
      case EventKind::kHostWait:
        if (const RuntimeEvent& signal = signals_.at(event.signal); signal.recorded)
          timeline_.wait_until(signal.time_ns);
        return Status::kOk;
      case EventKind::kHostWaitStream:
        timeline_.wait_until(timeline_.completion_ns(*streams_.at(event.stream)));
        return Status::kOk;
      case EventKind::kHostWaitDevice:
        timeline_.wait_until(timeline_.device_completion_ns(event.device));
        return Status::kOk;
      case EventKind::kMark:
        mark(index);
        return Status::kOk;
    }
    return Status::kOk;
  }

  // Does the same as Machine::kernel().
  Status run_kernel(const Event& event) {
    ++counters_.kernels;
    counted_ = totals();
    timeline_.advance(call_ns_);
    Stream& stream = *streams_.at(event.stream);
    const std::uint64_t at_ns = timeline_.earliest_start_ns(stream);
    Status status = Status::kOk;
    for (std::uint32_t i = 0; i < event.touch_count; ++i) {
      const Touch& touch = recording_.touches.at(event.first_touch + i);
      if (status == Status::kOk) status = use(event.device, touch, at_ns);
      count(touch);
    }
    const std::uint64_t kernel_ns = event_ns(recording_, event, costs_);
    step_kernel_ns_ += kernel_ns;
    timeline_.submit(stream, costs_.phases(residency_.take_work(), kernel_ns));
    return status;
  }

  // Attributes all faults and moves since the last count to the touch.
  void count(const Touch& touch) {
    BlockFigures& figures = outcome_.blocks.at(touch.block);
    ++figures.touches;
    const BlockFigures so_far = totals();
    figures.faults += so_far.faults - counted_.faults;
    figures.bytes_to_device += so_far.bytes_to_device - counted_.bytes_to_device;
    figures.evicted_bytes += so_far.evicted_bytes - counted_.evicted_bytes;
    counted_ = so_far;
  }

  BlockFigures totals() const {
    return {.touches = 0,
            .faults = counters_.faults_device,
            .bytes_to_device = counters_.migrated_bytes_to_device,
            .evicted_bytes = counters_.evicted_bytes};
  }

  Status use(int device, const Touch& touch, std::uint64_t at_ns) {
    if (residency_.is_whole_at(device, touch.pages)) return Status::kOk;
    const Access access{(touch.access & UVMSIM_READ) != 0, (touch.access & UVMSIM_WRITE) != 0,
                        at_ns};
    Status status = Status::kOk;
    advice_.visit(touch.pages.first, touch.pages.last,
                  [&](std::size_t first, std::size_t last, const Policy& policy) {
                    if (status != Status::kOk) return;
                    const auto [begin, end] = advice_.span_of(first);
                    status = residency_.touch(device, {first, last}, {begin, end}, policy, access);
                  });
    return status;
  }

  Status run_copy(const Event& event) {
    ++counters_.copy_calls;
    counters_.copy_bytes += event.amount;
    Status status = Status::kOk;
    for (std::uint32_t i = 0; i < event.touch_count && status == Status::kOk; ++i) {
      const Touch& touch = recording_.touches.at(event.first_touch + i);
      const bool is_write = (touch.access & UVMSIM_WRITE) != 0;
      const int location = event.way == CopyWay::kToHost && is_write ? kHost : event.device;
      status = residency_.copy_access(location, touch.pages, is_write);
      if (status == Status::kOutOfMemory)
        status = residency_.copy_access(kHost, touch.pages, is_write);
    }
    submit(event.stream, costs_.copy_phases(residency_.take_work(), event.amount, event.way));
    return status;
  }

  // ---- steps

  void mark(std::size_t index) {
    end_step();
    const auto found =
        std::lower_bound(recording_.marks.begin(), recording_.marks.end(), index,
                         [](const Mark& mark, std::size_t event) { return mark.event < event; });
    const bool is_known = found != recording_.marks.end() && found->event == index;
    begin_step(is_known ? found->text : "");
  }

  void begin_step(const std::string& text) {
    step_.mark = text;
    step_start_ns_ = timeline_.now_ns();
    step_counters_ = counters_;
    step_kernel_ns_ = 0;
  }

  // A step ends when the program's work is complete. A policy's moves may end in the next step.
  void end_step() {
    for (std::size_t i = 0; i < recording_.streams.size(); ++i)
      timeline_.wait_until(timeline_.completion_ns(*streams_[i]));
    step_.duration_ns = timeline_.now_ns() - step_start_ns_;
    step_.kernel_ns = step_kernel_ns_;
    step_.counters = difference(counters_, step_counters_);
    outcome_.steps.push_back(step_);
  }

  void sample(std::size_t index) {
    Sample taken{
        .event = index, .at_ns = timeline_.now_ns(), .counters = counters_, .resident_bytes = {}};
    for (int device = 0; device < recording_.device_count; ++device) {
      taken.at_ns = std::max(taken.at_ns, timeline_.device_completion_ns(device));
      taken.resident_bytes.push_back(memories_[static_cast<std::size_t>(device)].managed_bytes());
    }
    outcome_.samples.push_back(std::move(taken));
  }

  const Recording& recording_;
  HintPolicy& policy_;
  const CostModel costs_;
  uvmsim_counters counters_{};
  std::vector<DeviceMemory> memories_;
  HostMemory host_;
  Residency residency_;
  Timeline timeline_;
  SpanMap<Policy> advice_;
  std::vector<Stream*> streams_;
  std::map<std::pair<int, unsigned>, std::uint32_t> side_streams_;
  std::vector<RuntimeEvent> signals_;
  std::vector<RuntimeEvent> recorded_;  // events recorded by policies
  const std::uint64_t call_ns_;
  Outcome outcome_;
  BlockFigures counted_;
  Step step_;
  std::uint64_t step_start_ns_ = 0;
  std::uint64_t step_kernel_ns_ = 0;
  uvmsim_counters step_counters_{};
};

}  // namespace

Outcome run(const Recording& recording, const MachineProfile& profile, HintPolicy& policy,
            const RunOptions& options) {
  check_pages(recording);
  try {
    return Run(recording, profile, policy).go(options);
  } catch (const std::out_of_range&) {
    throw std::invalid_argument("the recording names a stream, a signal or a touch that it lacks");
  }
}

}  // namespace uvmsim::replay
