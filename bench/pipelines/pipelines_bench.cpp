// pipelines_bench [NAME=FILE.csv...]: prints figures of storage plans and credits as JSON. Packs
// the twenty packing problems made here, and the problem of each FILE. Times are processor times of
// this thread.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <iterator>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "pipelines/credits/credits.hpp"
#include "pipelines/packing/storage_packer.hpp"
#include "pipelines/plans/storage_arena.hpp"

#include "tests/support/counting_memory.hpp"
#include "tests/support/hard_instances.hpp"
#include "tests/support/pack_instance.hpp"

namespace {

using Json = nlohmann::ordered_json;
using namespace uvm;  // NOLINT(google-build-using-namespace): a program of one file

double processor_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// ---- packing

Json pack(std::vector<PackBuffer> buffers) {
  const double begin = processor_seconds();
  const PackProblem problem(std::move(buffers));
  const Packing packing = StoragePacker(problem, {}).pack();
  const double seconds = processor_seconds() - begin;
  if (!problem.fault_of(packing.offsets).empty()) throw std::logic_error("buffers overlap");
  return {{"buffers", problem.size()},
          {"over_bound",
           static_cast<double>(packing.height_bytes) /
               static_cast<double>(std::max<std::int64_t>(problem.lower_bound_bytes(), 1))},
          {"seconds", seconds}};
}

Json packings(int count, char** named_files) {
  Json all;
  for (std::uint32_t seed = 0; seed < 10; ++seed) {
    const std::size_t buffers = 200 + 30 * seed;
    all["layers-" + std::to_string(buffers)] = pack(testing::layers_of_program(seed, buffers));
    all["cut-" + std::to_string(buffers / 2)] =
        pack(testing::cut_rectangle(seed, buffers / 2, buffers, 1 << 20));
  }
  for (int number = 0; number < count; ++number) {
    const std::string argument = named_files[number];
    const std::size_t equals = argument.find('=');
    std::ifstream file(argument.substr(equals + 1));
    all[argument.substr(0, equals)] = pack(testing::read_pack_instance(file));
  }
  return all;
}

// ---- a pipeline in virtual time: how many tensors per millisecond the last stage computes

// Milliseconds of load, preprocess, move, compute. They vary by up to 20 %.
constexpr double kStages[] = {3, 5, 4, 5};
constexpr std::size_t kActors = std::size(kStages);
constexpr int kTensors = 2000;

double tensors_per_ms(const std::vector<std::size_t>& quotas, std::size_t memory_slots) {
  Credits credits(memory_slots);
  for (std::size_t actor = 0; actor < kActors; ++actor) credits.add_actor(std::to_string(actor));
  for (std::size_t actor = 0; actor + 1 < kActors; ++actor)
    credits.add_register({"r", actor, {actor + 1}, quotas[actor], 1});
  credits.check_memory();
  // Each stage has its own random numbers, so that all runs have the same times.
  std::vector<std::mt19937> random;
  for (std::size_t actor = 0; actor < kActors; ++actor)
    random.emplace_back(static_cast<std::uint32_t>(actor));
  std::vector<double> end(kActors, -1);  // of the running action; negative: none
  std::vector<int> started(kActors);
  int computed = 0;
  double now = 0;
  while (computed < kTensors) {
    // Try the last stages first, because they release memory.
    for (std::size_t actor = kActors; actor-- > 0;) {
      if (end[actor] >= 0 || started[actor] == kTensors || !credits.can_start(actor)) continue;
      credits.start(actor, {});
      ++started[actor];
      end[actor] = now + kStages[actor] * (0.8 + 0.4 * (random[actor]() / 4294967296.0));
    }
    std::size_t next = kActors;
    for (std::size_t actor = 0; actor < kActors; ++actor) {
      if (end[actor] >= 0 && (next == kActors || end[actor] < end[next])) next = actor;
    }
    if (next == kActors) throw std::logic_error("the pipeline stands still");
    now = end[next];
    end[next] = -1;
    credits.finish(next, {});
    credits.deliver_all({});
    computed += next + 1 == kActors;
  }
  return computed / now;
}

Json pipeline() {
  // A slot is in use from the start of the writing stage to the end of the reading stage. That
  // time, divided by the time of the slowest stage, which sets the bandwidth, is the number of
  // slots of a register in use at full speed. The memory is the sum of these quotas.
  const double slowest = *std::max_element(std::begin(kStages), std::end(kStages));
  std::vector<std::size_t> quotas;
  for (std::size_t actor = 0; actor + 1 < kActors; ++actor) {
    quotas.push_back(
        static_cast<std::size_t>(std::ceil((kStages[actor] + kStages[actor + 1]) / slowest)));
  }
  const std::size_t slots = std::accumulate(quotas.begin(), quotas.end(), std::size_t{0});
  const double bounded = tensors_per_ms(quotas, slots);
  // The same memory without a quota for each register: the fastest stage fills the memory.
  const double shared = tensors_per_ms(std::vector<std::size_t>(kActors - 1, slots), slots);
  const double unbounded =
      tensors_per_ms(std::vector<std::size_t>(kActors - 1, kTensors), Credits::kUnlimited);
  return {{"quotas", quotas},
          {"slots", slots},
          {"bounded_per_ms", bounded},
          {"unbounded_per_ms", unbounded},
          {"ratio", bounded / unbounded},
          {"ratio_of_shared_memory_alone", shared / unbounded}};
}

// ---- the view cache

Json views() {
  testing::CountingMemory memory;
  PlanDescription description{
      .variables = {{"n", 1, 64, ""}, {"m", 1, 64, ""}}, .storages = {}, .alignment_bytes = 512};
  for (int number = 0; number < 40; ++number) {
    description.storages.push_back(
        {"s" + std::to_string(number), "4 * n * m + 16 * n", number, number + 3, ""});
  }
  StorageArena arena(StoragePlan::make(description), memory, BeyondBound::kRefuse);
  std::vector<std::vector<std::int64_t>> shapes;
  for (std::int64_t number = 1; number <= 16; ++number) shapes.push_back({number, 65 - number});
  for (const auto& shape : shapes) arena.bind(shape);
  constexpr int kRounds = 20'000;
  std::size_t sum = 0;
  const double begin = processor_seconds();
  for (int round = 0; round < kRounds; ++round) {
    for (const auto& shape : shapes) sum += arena.bind(shape)[0].size_bytes;
  }
  const double seconds = processor_seconds() - begin;
  const double binds = static_cast<double>(kRounds) * static_cast<double>(shapes.size());
  return {{"hit_ns", 1e9 * seconds / binds},
          {"hits", static_cast<double>(arena.view_hits()) /
                       static_cast<double>(arena.view_hits() + arena.view_misses())},
          {"checksum", sum}};
}

}  // namespace

int main(int argc, char** argv) {
  const Json all{
      {"packings", packings(argc - 1, argv + 1)}, {"pipeline", pipeline()}, {"views", views()}};
  std::printf("%s\n", all.dump(1).c_str());
  return 0;
}
