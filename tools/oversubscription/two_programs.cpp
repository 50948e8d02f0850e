#include "tools/oversubscription/two_programs.hpp"

#include <algorithm>
#include <array>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "hints/sharing/turns.hpp"
#include "sim/engine/units.hpp"
#include "sim/replay/hint_policy.hpp"
#include "sim/replay/replay_machine.hpp"

#include "tools/oversubscription/recorded_order.hpp"
#include "tools/oversubscription/repeated_step.hpp"
#include "tools/oversubscription/what_if.hpp"

namespace uvm::oversubscription {
namespace {

using uvmsim::kPagesPerBlock;
using uvmsim::MachineProfile;
using uvmsim::PageRange;
using uvmsim::replay::Event;
using uvmsim::replay::EventKind;
using uvmsim::replay::HintPolicy;
using uvmsim::replay::Hints;
using uvmsim::replay::Outcome;
using uvmsim::replay::Recording;
using uvmsim::replay::Touch;

constexpr std::size_t kPrograms = 2;
constexpr std::size_t kWarmUpRounds = 1;
constexpr std::size_t kRounds = 3;
// Same value as in PlannedLivePolicy.
constexpr std::size_t kKernelsAhead = 16;

struct Turn {
  std::size_t first = 0;  // the first event
  std::size_t last = 0;   // one past the last event
  std::size_t program = 0;
};

// Both programs in one recording, each with its own signals, allocations and pages. They share
// streams, because a kernel of one program leaves no room for a kernel of the other.
class Together {
 public:
  explicit Together(const std::array<Recording, kPrograms>& programs) : programs_(programs) {
    for (std::size_t i = 0; i < kPrograms; ++i) add_tables(i);
    for (std::size_t i = 0; i < kPrograms; ++i) add_events(i, 0, programs_[i].marks.front().event);
    made_.marks.clear();
  }

  void add_mark(const std::string& text) {
    made_.marks.push_back({made_.events.size(), text});
    Event event;
    event.kind = EventKind::kMark;
    made_.events.push_back(event);
  }
  // Appends the next `count` steps of the program.
  void add_steps(std::size_t program, std::size_t count) {
    const auto& marks = programs_[program].marks;
    std::size_t& next = next_step_[program];
    const std::size_t first = made_.events.size();
    add_events(program, marks.at(next).event, marks.at(next + count).event);
    next += count;
    turns_.push_back({first, made_.events.size(), program});
  }

  const Recording& recording() const { return made_; }
  const std::vector<Turn>& turns() const { return turns_; }
  // Returns the blocks [first, second) of the program.
  std::pair<std::uint32_t, std::uint32_t> blocks(std::size_t program) const {
    return {first_block_[program], first_block_[program + 1]};
  }

 private:
  PageRange moved(std::size_t program, PageRange pages) const {
    const std::size_t offset = first_block_[program] * kPagesPerBlock;
    return {pages.first + offset, pages.last + offset};
  }

  void add_tables(std::size_t program) {
    const Recording& from = programs_[program];
    first_touch_[program] = static_cast<std::uint32_t>(made_.touches.size());
    first_signal_[program] = static_cast<std::uint32_t>(made_.signal_count);
    first_allocation_[program] = static_cast<std::uint32_t>(made_.allocation_count);
    first_block_[program] = static_cast<std::uint32_t>(made_.block_addresses.size());
    for (Touch touch : from.touches) {
      touch.pages = moved(program, touch.pages);
      touch.block += first_allocation_[program];
      made_.touches.push_back(touch);
    }
    made_.streams.resize(std::max(made_.streams.size(), from.streams.size()));
    made_.block_addresses.insert(made_.block_addresses.end(), from.block_addresses.begin(),
                                 from.block_addresses.end());
    made_.signal_count += from.signal_count;
    made_.allocation_count += from.allocation_count;
    first_block_[program + 1] = static_cast<std::uint32_t>(made_.block_addresses.size());
  }

  void add_events(std::size_t program, std::size_t first, std::size_t last) {
    for (std::size_t index = first; index < last; ++index) {
      Event event = programs_[program].events[index];
      if (event.kind == EventKind::kMark) continue;
      event.pages = moved(program, event.pages);
      event.first_touch += first_touch_[program];
      event.signal += first_signal_[program];
      event.block += first_allocation_[program];
      made_.events.push_back(event);
    }
  }

  const std::array<Recording, kPrograms>& programs_;
  Recording made_;
  std::vector<Turn> turns_;
  std::array<std::size_t, kPrograms> next_step_{};
  std::array<std::uint32_t, kPrograms> first_touch_{};
  std::array<std::uint32_t, kPrograms> first_signal_{};
  std::array<std::uint32_t, kPrograms> first_allocation_{};
  std::array<std::uint32_t, kPrograms + 1> first_block_{};
};

// Does the work of the live planner and of turns, for programs with known steps.
class TurnPolicy final : public HintPolicy {
 public:
  explicit TurnPolicy(const Together& together)
      : together_(together), is_here_(together.recording().block_addresses.size()) {}

  void before(std::size_t event, Hints& hints) override {
    const std::vector<Turn>& turns = together_.turns();
    if (turn_ < turns.size() && event >= turns[turn_].last) ++turn_;
    if (turn_ == turns.size() || event < turns[turn_].first) return;
    if (event == turns[turn_].first) begin_turn(hints);
    const Event& now = together_.recording().events[event];
    if (!is_kernel(now)) return;
    while (ahead_.size() < kKernelsAhead && looked_ < turns[turn_].last) look_ahead(now, hints);
    if (const auto arrived = ahead_.front()) hints.wait_for(now.stream, *arrived);
    ahead_.pop_front();
  }

 private:
  static constexpr unsigned kLeaving = 0;
  static constexpr unsigned kArriving = 1;

  void begin_turn(Hints& hints) {
    const Turn& turn = together_.turns()[turn_];
    looked_ = turn.first;
    ahead_.clear();
    if (turn_ == 0) return;
    const Turn& before = together_.turns()[turn_ - 1];
    const std::uint32_t leaving = hints.side_stream(0, kLeaving);
    if (last_stream_) hints.wait(leaving, *last_stream_);
    const auto [first, last] = together_.blocks(before.program);
    for (std::uint32_t block = first; block < last; ++block) {
      if (hints.resident_pages(pages_of(block), 0) == 0) continue;
      hints.prefetch(leaving, pages_of(block), uvmsim::kHost);
    }
    std::fill(is_here_.begin() + first, is_here_.begin() + last, false);
    hints.host_wait_for(hints.record(leaving));
  }

  // Looks at one more event of the turn, ahead of its execution.
  void look_ahead(const Event& now, Hints& hints) {
    const Event& event = together_.recording().events[looked_++];
    if (!is_kernel(event)) return;
    last_stream_ = event.stream;
    const std::uint32_t arriving = hints.side_stream(now.device, kArriving);
    bool is_new = false;
    for (const std::uint32_t block : blocks_of(together_.recording(), event)) {
      if (is_here_[block]) continue;
      is_here_[block] = is_new = true;
      hints.prefetch(arriving, pages_of(block), now.device);
    }
    ahead_.push_back(is_new ? std::optional(hints.record(arriving)) : std::nullopt);
  }

  const Together& together_;
  std::vector<bool> is_here_;  // by block, since the turn began
  std::size_t turn_ = 0;
  std::size_t looked_ = 0;  // events of the turn that were looked at so far
  // For each kernel that was looked at but not sent yet: the arrival of its blocks.
  std::deque<std::optional<std::uint32_t>> ahead_;
  std::optional<std::uint32_t> last_stream_;
};

// The mean over the measured rounds, which follow the warm-up.
struct Rounds {
  std::uint64_t round_ns = 0;
  std::uint64_t moved_bytes = 0;
  std::string failure;
};

Rounds run_rounds(const Together& together, const MachineProfile& profile, HintPolicy& policy) {
  const Outcome outcome = uvmsim::replay::run(together.recording(), profile, policy);
  Rounds result;
  result.failure = outcome.failure;
  if (!result.failure.empty()) return result;
  for (std::size_t i = 0; i < kRounds; ++i) {
    const auto& step = outcome.steps.at(1 + kWarmUpRounds + i);
    result.round_ns += step.duration_ns;
    result.moved_bytes += step.counters.migrated_bytes_to_device +
                          step.counters.migrated_bytes_to_host + step.counters.evicted_bytes;
  }
  result.round_ns /= kRounds;
  result.moved_bytes /= kRounds;
  return result;
}

}  // namespace

TwoPrograms two_programs(const Recording& first, const Recording& second,
                         const MachineProfile& machine, std::size_t memory_bytes) {
  TwoPrograms result;
  MachineProfile profile = machine;
  profile.capacity_bytes = capacity_with(memory_bytes);
  const sharing::TurnRules rules = sharing::TurnRules::for_device(memory_bytes);
  const std::array<const Recording*, kPrograms> recorded = {&first, &second};
  std::array<Recording, kPrograms> repeated;
  constexpr std::size_t kTurns = kWarmUpRounds + kRounds;
  for (std::size_t i = 0; i < kPrograms; ++i) {
    const StepFigures alone = WhatIf(*recorded[i], "", machine).all_resident();
    if (!alone.failure.empty()) {
      result.failure = alone.failure;
      return result;
    }
    result.steps[i] = std::max<std::size_t>(1, (rules.turn_ns + alone.step_ns - 1) / alone.step_ns);
    result.alone_ns += result.steps[i] * alone.step_ns;
    repeated[i] = repeated_step(*recorded[i], "", kTurns * result.steps[i]);
  }
  Together in_turns(repeated);
  Together step_by_step(repeated);
  for (std::size_t round = 0; round < kTurns; ++round) {
    in_turns.add_mark(std::to_string(round));
    step_by_step.add_mark(std::to_string(round));
    for (std::size_t i = 0; i < kPrograms; ++i) in_turns.add_steps(i, result.steps[i]);
    for (std::size_t step = 0; step < std::max(result.steps[0], result.steps[1]); ++step) {
      for (std::size_t i = 0; i < kPrograms; ++i) {
        if (step < result.steps[i]) step_by_step.add_steps(i, 1);
      }
    }
  }
  in_turns.add_mark("end");
  step_by_step.add_mark("end");
  TurnPolicy turns(in_turns);
  uvmsim::replay::NoHints driver;
  const Rounds with_turns = run_rounds(in_turns, profile, turns);
  const Rounds without = run_rounds(step_by_step, profile, driver);
  result.failure = with_turns.failure.empty() ? without.failure : with_turns.failure;
  result.turns_ns = with_turns.round_ns;
  result.moved_bytes = with_turns.moved_bytes;
  result.driver_ns = without.round_ns;
  return result;
}

}  // namespace uvm::oversubscription
