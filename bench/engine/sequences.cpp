#include "sequences.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>

#include "random_source.hpp"

namespace uvm::bench {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

// Hands out slot numbers, lowest free one first in, last out.
class Slots {
 public:
  std::uint32_t take() {
    if (free_.empty()) return next_++;
    const std::uint32_t slot = free_.back();
    free_.pop_back();
    return slot;
  }
  void give_back(std::uint32_t slot) { free_.push_back(slot); }

 private:
  std::vector<std::uint32_t> free_;
  std::uint32_t next_ = 0;
};

// A small transformer: what one step of it asks for.
class TrainingStep {
 public:
  TrainingStep(OperationSequence* sequence, Slots* slots) : sequence_(*sequence), slots_(*slots) {}

  // `tokens` is batch times sequence length.
  void run(std::uint64_t tokens) {
    const std::uint64_t batch = allocate(tokens * 8);
    std::vector<std::uint32_t> kept;
    for (int layer = 0; layer < kLayers; ++layer) forward(tokens, &kept);
    const std::uint32_t logits = allocate(tokens * kVocabulary * kElement);
    const std::uint32_t loss = allocate(4);
    std::uint32_t gradient = allocate(tokens * kWidth * kElement);
    give_back(logits);
    std::vector<std::uint32_t> weight_gradients;
    for (int layer = 0; layer < kLayers; ++layer) {
      gradient = backward(tokens, gradient, &kept, &weight_gradients);
    }
    give_back(gradient);
    give_back(static_cast<std::uint32_t>(batch));
    for (std::uint32_t slot : weight_gradients) optimize(slot);
    give_back(loss);
  }

  // Weights and two optimizer moments of every layer: never freed by a step.
  void persistent() {
    for (int layer = 0; layer < kLayers * 3; ++layer) {
      allocate(kWidth * kWidth * 4 * kElement);
      allocate(kWidth * kWidth * 8 * kElement);
      allocate(kWidth * kElement);
      allocate(kWidth * kElement);
    }
  }

 private:
  static constexpr int kLayers = 12;
  static constexpr std::uint64_t kWidth = 768;
  static constexpr std::uint64_t kVocabulary = 8192;
  static constexpr std::uint64_t kElement = 4;
  static constexpr std::size_t kKeptPerLayer = 5;

  std::uint32_t allocate(std::uint64_t size_bytes) {
    const std::uint32_t slot = slots_.take();
    sequence_.allocate(slot, size_bytes);
    return slot;
  }
  void give_back(std::uint32_t slot) {
    sequence_.free(slot);
    slots_.give_back(slot);
  }

  void forward(std::uint64_t tokens, std::vector<std::uint32_t>* kept) {
    const std::uint64_t hidden = tokens * kWidth * kElement;
    kept->push_back(allocate(tokens * 2 * kElement));  // mean and deviation of the norm
    kept->push_back(allocate(hidden));
    const std::uint32_t projected = allocate(hidden * 3);
    kept->push_back(allocate(hidden));
    give_back(projected);
    kept->push_back(allocate(hidden * 4));
    const std::uint32_t activated = allocate(hidden * 4);
    kept->push_back(allocate(hidden));
    give_back(activated);
  }

  std::uint32_t backward(std::uint64_t tokens, std::uint32_t gradient,
                         std::vector<std::uint32_t>* kept,
                         std::vector<std::uint32_t>* weight_gradients) {
    const std::uint64_t hidden = tokens * kWidth * kElement;
    const std::uint32_t wide = allocate(hidden * 4);
    weight_gradients->push_back(allocate(kWidth * kWidth * 8 * kElement));
    weight_gradients->push_back(allocate(kWidth * kWidth * 4 * kElement));
    weight_gradients->push_back(allocate(kWidth * kElement));
    const std::uint32_t below = allocate(hidden);
    for (std::size_t i = 0; i < kKeptPerLayer; ++i) {
      give_back(kept->back());
      kept->pop_back();
    }
    give_back(wide);
    give_back(gradient);
    return below;
  }

  void optimize(std::uint32_t weight_gradient) {
    const std::uint32_t temporary = allocate(kWidth * kWidth * 4 * kElement);
    give_back(temporary);
    give_back(weight_gradient);
  }

  OperationSequence& sequence_;
  Slots& slots_;
};

[[noreturn]] void bad_line(const std::filesystem::path& file, std::size_t number,
                           const std::string& why) {
  throw std::runtime_error(file.string() + ":" + std::to_string(number) + ": " + why);
}

void read_line(const std::string& line, OperationSequence* sequence) {
  std::istringstream words(line.substr(0, line.find('#')));
  std::string kind;
  if (!(words >> kind)) return;
  if (kind == "step") {
    sequence->begin_step();
    return;
  }
  std::uint32_t slot = 0;
  std::uint64_t size_bytes = 0;
  std::uint16_t stream = 0;
  if (kind == "a" && words >> slot >> size_bytes >> stream) {
    sequence->allocate(slot, size_bytes, stream);
  } else if (kind == "f" && words >> slot) {
    sequence->free(slot);
  } else {
    throw std::invalid_argument("expected 'a SLOT BYTES STREAM', 'f SLOT' or 'step'");
  }
}

void read_pass(const std::filesystem::path& file, OperationSequence* sequence) {
  std::ifstream in(file);
  if (!in) throw std::runtime_error(file.string() + ": cannot be read");
  const std::size_t first_operation = sequence->operations.size();
  const std::size_t first_step = sequence->step_begins.size();
  std::string line;
  for (std::size_t number = 1; std::getline(in, line); ++number) {
    try {
      read_line(line, sequence);
    } catch (const std::invalid_argument& wrong) {
      bad_line(file, number, wrong.what());
    }
  }
  sequence->free_all();
  if (sequence->step_begins.size() == first_step) sequence->step_begins.push_back(first_operation);
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

OperationSequence training_steps(std::size_t steps, bool varying, std::uint64_t seed) {
  constexpr std::uint64_t kBatch = 8;
  constexpr std::uint64_t kMostTokens = kBatch * 512;
  RandomSource random(seed);
  OperationSequence sequence;
  Slots slots;
  TrainingStep step(&sequence, &slots);
  step.persistent();
  for (std::size_t i = 0; i < steps; ++i) {
    sequence.begin_step();
    step.run(varying ? kBatch * (256 + random.below(257)) : kMostTokens);
  }
  return sequence;
}

OperationSequence read_sequence(const std::filesystem::path& file, std::size_t passes) {
  OperationSequence sequence;
  for (std::size_t pass = 0; pass < passes; ++pass) read_pass(file, &sequence);
  return sequence;
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
