#include "sequences.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>

#include <uvmalloc/facade.hpp>
#include "tools/trace/trace_reader.hpp"

#include "random_source.hpp"
#include "tools/replay/replay_plan.hpp"

namespace uvm::bench {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

// Hands out slot numbers; reuses the slot that was freed last.
class Slots {
 public:
  explicit Slots(std::uint32_t first = 0) : next_(first) {}
  std::uint32_t take() {
    if (free_.empty()) return next_++;
    const std::uint32_t slot = free_.back();
    free_.pop_back();
    return slot;
  }
  void give_back(std::uint32_t slot) { free_.push_back(slot); }

 private:
  std::vector<std::uint32_t> free_;
  std::uint32_t next_;
};

// Returns, by slot, the allocating operation of each block that is live before operation `end`.
std::map<std::uint32_t, std::size_t> live_before(const OperationSequence& sequence,
                                                 std::size_t end) {
  std::map<std::uint32_t, std::size_t> live;
  for (std::size_t i = 0; i < end; ++i) {
    const Operation& operation = sequence.operations[i];
    if (operation.kind == OperationKind::kAllocate) {
      live[operation.slot] = i;
    } else {
      live.erase(operation.slot);
    }
  }
  return live;
}

bool is_device_facade(const replay::ReplayOperation& operation) {
  return operation.facade == static_cast<std::uint8_t>(Facade::kDevice);
}

// Returns each stream's number in the sequence; 0 for the default stream of any device.
std::vector<std::uint16_t> stream_numbers(const replay::ReplayPlan& plan) {
  std::vector<std::uint16_t> numbers;
  std::uint16_t others = 0;
  for (const replay::ReplayStream& stream : plan.streams) {
    numbers.push_back(stream.handle == 0 ? 0 : ++others);
  }
  return numbers;
}

}  // namespace

OperationSequence churn(const ChurnShape& shape) {
  RandomSource random(shape.seed);
  OperationSequence sequence;
  sequence.operations.reserve(shape.live +
                              2 * (shape.warm_replacements + shape.replacements + shape.live));
  sequence.begin_step();
  auto size = [&] { return random.log_uniform(shape.least_bytes, shape.most_bytes); };
  for (std::uint32_t slot = 0; slot < shape.live; ++slot) sequence.allocate(slot, size());
  auto replace = [&] {
    const auto slot = static_cast<std::uint32_t>(random.below(shape.live));
    sequence.free(slot);
    sequence.allocate(slot, size());
  };
  for (std::size_t i = 0; i < shape.warm_replacements; ++i) replace();
  for (std::size_t step = 0; step < shape.timed_steps; ++step) {
    sequence.begin_step();
    for (std::size_t i = 0; i < shape.replacements / shape.timed_steps; ++i) replace();
  }
  return sequence;
}

OperationSequence random_grid(std::size_t allocations, std::uint64_t most_bytes,
                              std::uint64_t live_limit_bytes, std::size_t steps,
                              std::uint64_t seed) {
  OperationSequence sequence;
  for (std::size_t step = 0; step < steps; ++step) {
    RandomSource random(seed);
    Slots slots;
    std::vector<std::pair<std::uint32_t, std::uint64_t>> live;
    std::uint64_t live_bytes = 0;
    auto free_one = [&] {
      const std::size_t index = random.below(live.size());
      sequence.free(live[index].first);
      slots.give_back(live[index].first);
      live_bytes -= live[index].second;
      live[index] = live.back();
      live.pop_back();
    };
    sequence.begin_step();
    for (std::size_t made = 0; made < allocations;) {
      const std::uint64_t size_bytes = 1 + random.below(most_bytes);
      const bool allocate = live.empty() || random.below(2) == 0;
      if (allocate && live_bytes + size_bytes <= live_limit_bytes) {
        live.emplace_back(slots.take(), size_bytes);
        sequence.allocate(live.back().first, size_bytes);
        live_bytes += size_bytes;
        ++made;
      } else {
        free_one();
      }
    }
    while (!live.empty()) free_one();
  }
  return sequence;
}

OperationSequence traced_steps(const std::string& trace) {
  const replay::ReplayPlan plan = replay::make_plan(read_trace(trace));
  if (plan.marks.size() < 2) throw std::runtime_error(trace + ": fewer than two marks: no step");
  const std::vector<std::uint16_t> streams = stream_numbers(plan);
  OperationSequence sequence;
  std::vector<bool> held(plan.slots);  // whether a block of the device facade is in the slot
  auto mark = plan.marks.begin();
  for (std::size_t i = 0; i < plan.marks.back(); ++i) {
    for (; *mark == i; ++mark) sequence.begin_step();
    const replay::ReplayOperation& operation = plan.operations[i];
    if (operation.kind == replay::ReplayKind::kAllocate) {
      if (!is_device_facade(operation) || operation.size_bytes == 0) continue;
      held[operation.slot] = true;
      sequence.allocate(operation.slot, operation.size_bytes,
                        streams[static_cast<std::size_t>(operation.stream)]);
    } else if (operation.kind == replay::ReplayKind::kFree && held[operation.slot]) {
      held[operation.slot] = false;
      sequence.free(operation.slot);
    }
  }
  if (sequence.operations.empty()) throw std::runtime_error(trace + ": nothing of the device");
  return sequence;
}

void repeat_steps(OperationSequence& sequence, std::size_t first, std::size_t times) {
  const std::vector<std::size_t> begins(sequence.step_begins.begin() + static_cast<long>(first),
                                        sequence.step_begins.end());
  // By slot: the blocks that are live before the steps and after them.
  const auto before = live_before(sequence, begins.front());
  const auto after = live_before(sequence, sequence.operations.size());
  std::vector<std::size_t> consumed, left;  // the allocating operations, in order
  for (const auto& [slot, at] : before) {
    if (auto still = after.find(slot); still == after.end() || still->second != at) {
      consumed.push_back(at);
    }
  }
  for (const auto& [slot, at] : after) {
    if (at >= begins.front()) left.push_back(at);
  }
  std::sort(consumed.begin(), consumed.end());
  std::sort(left.begin(), left.end());

  const std::vector<Operation> all = sequence.operations;
  Slots slots(sequence.slots);
  std::vector<std::uint32_t> actual(sequence.slots);  // by slot: the slot that holds its block now
  for (std::uint32_t slot = 0; slot < sequence.slots; ++slot) actual[slot] = slot;
  for (std::size_t time = 0; time < times; ++time) {
    sequence.begin_step();
    std::multimap<std::pair<std::uint16_t, std::uint64_t>, std::uint32_t> there;
    for (std::size_t at : left) {
      const Operation& block = all[at];
      there.emplace(std::pair(block.stream, block.size_bytes), actual[block.slot]);
    }
    std::vector<const Operation*> missing;
    for (std::size_t at : consumed) {
      const Operation& block = all[at];
      if (auto found = there.lower_bound({block.stream, block.size_bytes});
          found != there.end() && found->first == std::pair(block.stream, block.size_bytes)) {
        actual[block.slot] = found->second;
        there.erase(found);
      } else {
        missing.push_back(&block);
      }
    }
    for (const auto& [kind, slot] : there) {
      sequence.free(slot);
      slots.give_back(slot);
    }
    for (const Operation* block : missing) {
      actual[block->slot] = slots.take();
      sequence.allocate(actual[block->slot], block->size_bytes, block->stream);
    }
    auto begin = begins.begin() + 1;
    for (std::size_t i = begins.front(); i < all.size(); ++i) {
      if (begin != begins.end() && *begin == i) {
        sequence.begin_step();
        ++begin;
      }
      const Operation& operation = all[i];
      if (operation.kind == OperationKind::kAllocate) {
        actual[operation.slot] = slots.take();
        sequence.allocate(actual[operation.slot], operation.size_bytes, operation.stream);
      } else {
        sequence.free(actual[operation.slot]);
        slots.give_back(actual[operation.slot]);
      }
    }
  }
}

OperationSequence with_random_beginning(const OperationSequence& sequence, std::uint64_t seed) {
  constexpr std::uint64_t kMostBlocks = 8;
  constexpr std::uint64_t kLeastBytes = 512;
  constexpr std::uint64_t kMostBytes = std::uint64_t{8} << 20;
  RandomSource random(seed);
  const std::size_t first_step =
      sequence.step_begins.size() > 1 ? sequence.step_begins[1] : sequence.operations.size();
  std::multimap<std::size_t, std::uint64_t> more;  // operation -> sizes allocated before it
  for (std::uint64_t blocks = 1 + random.below(kMostBlocks); blocks != 0; --blocks) {
    const std::size_t place = random.below(3) == 0 ? random.below(first_step) : 0;
    more.emplace(place, random.log_uniform(kLeastBytes, kMostBytes));
  }
  OperationSequence out;
  auto step = sequence.step_begins.begin();
  auto next = more.begin();
  std::uint32_t slot = sequence.slots;
  for (std::size_t i = 0; i < sequence.operations.size(); ++i) {
    for (; step != sequence.step_begins.end() && *step == i; ++step) out.begin_step();
    for (; next != more.end() && next->first == i; ++next) out.allocate(slot++, next->second);
    const Operation& operation = sequence.operations[i];
    if (operation.kind == OperationKind::kAllocate) {
      out.allocate(operation.slot, operation.size_bytes, operation.stream);
    } else {
      out.free(operation.slot);
    }
  }
  return out;
}

std::vector<std::uint64_t> spread_sizes(std::size_t count, std::uint64_t seed) {
  constexpr double kOctaves = 16;  // 512 B to 32 MiB
  static_assert(512 << 16 == 32 * kMiB);
  std::vector<std::uint64_t> sizes(count);
  std::uint64_t multiple = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const double octave = kOctaves * static_cast<double>(i) / static_cast<double>(count - 1);
    multiple = std::max(multiple + 1, static_cast<std::uint64_t>(std::exp2(octave)));
    sizes[i] = multiple * 512;
  }
  RandomSource random(seed);
  for (std::size_t i = count - 1; i > 0; --i) std::swap(sizes[i], sizes[random.below(i + 1)]);
  return sizes;
}

}  // namespace uvm::bench
