#include "tools/oversubscription/offload.hpp"

#include <algorithm>
#include <map>
#include <stdexcept>
#include <utility>

#include <uvmalloc/sim/uvmsim.h>

#include "tools/oversubscription/recorded_order.hpp"

namespace uvm::oversubscription {
namespace {

using uvmsim::CopyWay;
using uvmsim::replay::Event;
using uvmsim::replay::EventKind;
using uvmsim::replay::Recording;
using uvmsim::replay::Touch;

// A module's kernels follow one another. If more kernels than this lie between two uses of a
// weight, the uses belong to two modules, or to two runs of one module.
constexpr std::size_t kKernelsOfModule = 2;

// The uses of one allocation in one step.
struct Life {
  std::vector<std::size_t> uses;      // the events that use it
  std::size_t uses_before_write = 0;  // the uses before the first write
  std::uint64_t bytes = 0;
  bool is_written = false;
  bool begins = false;  // allocated within the step
  bool ends = false;
};

// Computes the lives of all allocations in the events [first, last) of one repetition.
class StepLives {
 public:
  StepLives(const Recording& recording, std::size_t first, std::size_t last,
            const std::map<std::uint32_t, std::uint64_t>& bytes_of)
      : recording_(recording), first_(first) {
    std::uint64_t live_bytes = 0;
    for (std::size_t index = first; index < last; ++index) {
      const Event& event = recording.events[index];
      if (event.kind == EventKind::kAllocate) {
        lives_[event.block].begins = true;
        live_bytes += event.amount;
      } else if (event.kind == EventKind::kFree) {
        lives_[event.block].ends = true;
        live_bytes -= event.amount;
      } else if (event.kind == EventKind::kKernel) {
        add_uses(index, event);
      }
      live_bytes_.push_back(static_cast<std::int64_t>(live_bytes));
    }
    for (auto& [block, life] : lives_) {
      const auto found = bytes_of.find(block);
      life.bytes = found == bytes_of.end() ? 0 : found->second;
    }
  }

  const std::map<std::uint32_t, Life>& lives() const { return lives_; }
  // Training writes memory that outlives a step. Without such writes there is no backward pass.
  bool writes_lasting_memory() const {
    return std::ranges::any_of(lives_, [](const auto& each) {
      return !each.second.begins && !each.second.ends && each.second.is_written;
    });
  }
  // Returns the event at which forward ends and backward begins: the moment with the most live
  // bytes between the first use of the last weight and the next use of any weight. Without weights,
  // returns the moment of the whole step with the most live bytes. That moment may be inside the
  // optimizer, if the optimizer's temporary memory is larger.
  std::size_t end_of_forward() const {
    std::size_t begin = first_;
    for (const Life* weight : weights()) begin = std::max(begin, weight->uses.front());
    std::size_t end = first_ + live_bytes_.size() - 1;
    for (const Life* weight : weights()) {
      const auto next = std::ranges::upper_bound(weight->uses, begin);
      if (next != weight->uses.end()) end = std::min(end, *next);
    }
    const auto from = live_bytes_.begin() + static_cast<std::ptrdiff_t>(begin - first_);
    const auto to = live_bytes_.begin() + static_cast<std::ptrdiff_t>(end - first_ + 1);
    return first_ + static_cast<std::size_t>(std::max_element(from, to) - live_bytes_.begin());
  }

 private:
  void add_uses(std::size_t index, const Event& event) {
    for (std::uint32_t i = 0; i < event.touch_count; ++i) {
      const Touch& touch = recording_.touches.at(event.first_touch + i);
      Life& life = lives_[touch.block];
      const bool is_written = (touch.access & UVMSIM_WRITE) != 0;
      if (life.uses.empty() || life.uses.back() != index) life.uses.push_back(index);
      if (is_written && !life.is_written) life.uses_before_write = life.uses.size() - 1;
      life.is_written |= is_written;
    }
  }

  // Returns the weights. Forward and backward read a weight before the optimizer writes it. An
  // optimizer's own state is read at most once before it is written.
  std::vector<const Life*> weights() const {
    std::vector<const Life*> found;
    for (const auto& [block, life] : lives_) {
      const bool is_weight =
          !life.begins && !life.ends && life.is_written && life.uses_before_write >= 2;
      if (is_weight) found.push_back(&life);
    }
    return found;
  }

  const Recording& recording_;
  const std::size_t first_;
  std::map<std::uint32_t, Life> lives_;   // by allocation
  std::vector<std::int64_t> live_bytes_;  // by event; only differences matter
};

class Builder {
 public:
  explicit Builder(const Recording& recording)
      : recording_(recording), change_(recording.events.size() + 1) {
    for (const Event& event : recording.events) {
      if (event.kind == EventKind::kAllocate) bytes_of_[event.block] = event.amount;
    }
  }

  Offload build(std::string_view name) {
    for (std::size_t i = 0; i + 1 < recording_.marks.size(); ++i) {
      const StepLives step(recording_, recording_.marks[i].event, recording_.marks[i + 1].event,
                           bytes_of_);
      const bool trains = step.writes_lasting_memory();
      const std::size_t turn = step.end_of_forward();
      for (const auto& [block, life] : step.lives()) {
        if (life.uses.empty() || life.bytes == 0) continue;
        const std::pair around(recording_.marks[i].event, recording_.marks[i + 1].event);
        if (name == kOffloadNames[0]) move_weights(life, around);
        if (name == kOffloadNames[1] && trains) move_activation(life, turn);
        if (name == kOffloadNames[2]) move_state(life, around, turn);
      }
    }
    std::ranges::stable_sort(made_.copies, {}, &OffloadCopy::before);
    if (made_.copies.empty()) made_.failure = "the step has no memory of that kind";
    add_up();
    return std::move(made_);
  }

 private:
  void copy(std::size_t before, std::size_t at, CopyWay way, std::uint64_t bytes,
            bool host_waits = true) {
    made_.copies.push_back({before, recording_.events[at].stream, way, bytes, host_waits});
  }

  // Removes bytes from the device during the events [first, last).
  void take_away(std::size_t first, std::size_t last, std::uint64_t bytes) {
    if (first >= last) return;
    change_[first] -= static_cast<std::int64_t>(bytes);
    change_[last] += static_cast<std::int64_t>(bytes);
  }

  std::size_t kernels_between(std::size_t first, std::size_t last) const {
    return static_cast<std::size_t>(
        std::count_if(recording_.events.begin() + static_cast<std::ptrdiff_t>(first) + 1,
                      recording_.events.begin() + static_cast<std::ptrdiff_t>(last),
                      [](const Event& each) { return each.kind == EventKind::kKernel; }));
  }

  void move_weights(const Life& life, std::pair<std::size_t, std::size_t> step) {
    if (life.begins || life.ends || life.is_written) return;
    copy(life.uses.front(), life.uses.front(), CopyWay::kToDevice, life.bytes);
    for (std::size_t i = 1; i < life.uses.size(); ++i) {
      if (kernels_between(life.uses[i - 1], life.uses[i]) < kKernelsOfModule) continue;
      copy(life.uses[i], life.uses[i], CopyWay::kToDevice, life.bytes);
      take_away(life.uses[i - 1] + 1, life.uses[i], life.bytes);
    }
    take_away_outside(life, step);
  }

  void move_activation(const Life& life, std::size_t turn) {
    if (!life.begins || !life.ends) return;
    const auto backward = std::ranges::upper_bound(life.uses, turn);
    if (backward == life.uses.begin() || backward == life.uses.end()) return;
    const std::size_t saved = *std::prev(backward);
    copy(saved + 1, saved, CopyWay::kToHost, life.bytes);
    copy(*backward, *backward, CopyWay::kToDevice, life.bytes, false);
    take_away(saved + 1, *backward, life.bytes);
  }

  // Moves memory that forward and backward do not use.
  void move_state(const Life& life, std::pair<std::size_t, std::size_t> step, std::size_t turn) {
    if (life.begins || life.ends || !life.is_written || life.uses.front() < turn) return;
    copy(life.uses.front(), life.uses.front(), CopyWay::kToDevice, life.bytes);
    copy(life.uses.back() + 1, life.uses.back(), CopyWay::kToHost, life.bytes);
    take_away_outside(life, step);
  }

  // Removes the allocation from the device before its first use in a step and after its last use.
  void take_away_outside(const Life& life, std::pair<std::size_t, std::size_t> step) {
    take_away(step.first, life.uses.front(), life.bytes);
    take_away(life.uses.back() + 1, step.second, life.bytes);
  }

  void add_up() {
    // There are no explicit moves after the last mark.
    std::vector<std::uint64_t> live = live_bytes(recording_);
    live.resize(recording_.marks.back().event);
    std::int64_t away = 0;
    for (std::size_t index = 0; index < live.size(); ++index) {
      away += change_[index];
      if (index < recording_.marks.front().event) continue;
      made_.peak_bytes =
          std::max(made_.peak_bytes,
                   static_cast<std::uint64_t>(static_cast<std::int64_t>(live[index]) + away));
    }
  }

  const Recording& recording_;
  std::map<std::uint32_t, std::uint64_t> bytes_of_;  // by allocation
  std::vector<std::int64_t> change_;                 // by event: change of bytes on the device
  Offload made_;
};

}  // namespace

Offload offload_of(const Recording& recording, std::string_view name) {
  if (std::ranges::find(kOffloadNames, name) == kOffloadNames.end())
    throw std::invalid_argument("'" + std::string(name) + "' is not a way to move memory by hand");
  return Builder(recording).build(name);
}

void OffloadPolicy::before(std::size_t event, uvmsim::replay::Hints& hints) {
  for (; next_ < copies_.size() && copies_[next_].before <= event; ++next_) {
    const OffloadCopy& copy = copies_[next_];
    hints.copy(copy.stream, copy.bytes, copy.way);
    if (copy.host_waits) hints.host_wait_for(hints.record(copy.stream));
  }
}

}  // namespace uvm::oversubscription
