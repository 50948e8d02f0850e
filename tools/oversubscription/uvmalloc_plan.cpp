// uvmalloc_plan TRACE --machine NAME [OPTION...]: runs a recorded step on a machine with less
// memory, under each policy, and prints JSON. --help lists the options. Exit code 0; 2 if the
// command, the trace or the profile is invalid.
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "sim/engine/settings.hpp"
#include "sim/engine/units.hpp"

#include "tools/command_line.hpp"
#include "tools/machine_replay/trace_recording.hpp"
#include "tools/oversubscription/found_step.hpp"
#include "tools/oversubscription/offload.hpp"
#include "tools/oversubscription/policies.hpp"
#include "tools/oversubscription/two_programs.hpp"
#include "tools/oversubscription/what_if.hpp"

namespace uvm::oversubscription {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kWithin = 1.1;
struct Command {
  std::string file;
  std::string machine;
  std::string step;
  std::vector<std::size_t> memory_bytes;
  std::vector<double> times;
  std::string beside;
  bool check = false;
};

double times_of(const std::string& text) {
  double value = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), value);
  if (read.ec == std::errc() && read.ptr == text.data() + text.size() && value > 0 && value < 1000)
    return value;
  throw std::invalid_argument(fmt::format("--times is '{}'; accepted: a number such as 1.5", text));
}

std::size_t memory_of(std::string_view text) {
  const std::optional<std::size_t> bytes = uvmsim::parse_bytes(text);
  if (bytes && *bytes >= uvmsim::kBlockBytes && *bytes <= uvmsim::kLargestRequestBytes)
    return *bytes;
  throw std::invalid_argument(
      fmt::format("--memory is '{}'; accepted: a size from 2MiB to 64TiB, such as 512MiB", text));
}

// Returns nullopt if the command requests help.
std::optional<Command> parse_command(int count, char** words) {
  Command command;
  CLI::App app(
      "a recorded step on a machine with some memory, under each policy, in virtual time, as JSON");
  app.add_option("TRACE", command.file);
  app.add_option("--machine", command.machine, "a machine of sim/profiles, or a file in TOML")
      ->required();
  const auto* step = app.add_option(
      "--step", command.step,
      "the step that begins at that mark; without it the last whole one. In a trace with fewer "
      "than two marks: the step that the kernels repeat");
  std::vector<std::string> memory;
  std::vector<std::string> times;
  app.add_option("--memory", memory, "that programs have of the device; may be repeated")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--times", times,
                 "memory such that the step needs X times as much; may be repeated")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--beside", command.beside,
                 "only this: with the last whole step of another program on the same device, by "
                 "turns; with --times, which is of the larger of both");
  app.add_flag("--check", command.check,
               "only this, without a trace: whether the machine and the options are of use");
  if (!read_command(&app, count, words)) return std::nullopt;
  for (const std::string& text : memory) command.memory_bytes.push_back(memory_of(text));
  for (const std::string& text : times) command.times.push_back(times_of(text));
  if (!step->empty() && command.step.empty())
    throw std::invalid_argument("--step is ''; accepted: a mark");
  if (command.file.empty() != command.check)
    throw std::invalid_argument("accepted: a trace, or --check without a trace");
  if (!command.beside.empty() && (command.times.size() != 1 || !command.step.empty()))
    throw std::invalid_argument("--beside needs --machine and exactly one --times");
  return command;
}

Json json_of(const StepFigures& figures) {
  if (!figures.failure.empty()) return {{"failure", figures.failure}};
  return {{"step_ns", figures.step_ns},
          {"kernel_ns", figures.kernel_ns},
          {"to_device_bytes", figures.to_device_bytes},
          {"to_host_bytes", figures.to_host_bytes},
          {"faults", figures.faults},
          {"hint_calls", figures.hint_calls},
          {"copied_bytes", figures.copied_bytes},
          {"repairs", figures.repairs}};
}

// Returns `needed_bytes` divided by `times`, in whole blocks, at least one block.
std::size_t bytes_for(std::size_t needed_bytes, double times) {
  const auto bytes = static_cast<std::size_t>(static_cast<double>(needed_bytes) / times);
  return std::max<std::size_t>(bytes / uvmsim::kBlockBytes, 1) * uvmsim::kBlockBytes;
}

Json point_of(const WhatIf& what_if, std::size_t memory_bytes) {
  Json policies;
  for (const std::string_view policy : kPolicyNames)
    policies[std::string(policy)] = json_of(what_if.step(policy, memory_bytes));
  return {{"memory_bytes", memory_bytes},
          {"capacity_bytes", capacity_with(memory_bytes)},
          {"policies", policies},
          {"shuffled",
           {{"driver", json_of(what_if.shuffled_step("driver", memory_bytes))},
            {"auto", json_of(what_if.shuffled_step("auto", memory_bytes))}}}};
}

struct Steps {
  uvmsim::replay::Recording recording;
  std::string program;
  bool has_marks = true;  // the recording had marks; a found step adds two
};

Steps steps_of(const std::string& file, const std::string& step) {
  const Trace trace = read_trace(file);
  Steps steps{machine_replay::recording_of(trace), trace.program};
  steps.has_marks = steps.recording.marks.size() >= 2 || !step.empty();
  if (!steps.has_marks) steps.recording = with_found_step(steps.recording);
  return steps;
}

void plan_beside(const Command& command, const uvmsim::MachineProfile& profile) {
  const auto first = steps_of(command.file, "").recording;
  const auto second = steps_of(command.beside, "").recording;
  const std::size_t most = std::max(WhatIf(first, "", profile).footprint().peak_bytes,
                                    WhatIf(second, "", profile).footprint().peak_bytes);
  const std::size_t memory_bytes = bytes_for(most, command.times.front());
  const TwoPrograms found = two_programs(first, second, profile, memory_bytes);
  const Json result = found.failure.empty()
                          ? Json{{"memory_bytes", memory_bytes},     {"steps", found.steps},
                                 {"alone_ns", found.alone_ns},       {"turns_ns", found.turns_ns},
                                 {"moved_bytes", found.moved_bytes}, {"driver_ns", found.driver_ns}}
                          : Json{{"failure", found.failure}};
  fmt::print("{}\n", result.dump(1));
}

void plan(const Command& command) {
  const auto profile = uvmsim::read_profile(uvmsim::profile_path(command.machine));
  if (profile.memory == uvmsim::Profile::kIntegrated ||
      profile.memory == uvmsim::Profile::kCoherent)
    throw std::invalid_argument(
        "the machine has no memory of its own to plan for; accepted: one "
        "whose memory is discrete");
  if (command.check) return;
  if (!command.beside.empty()) {
    plan_beside(command, profile);
    return;
  }
  const Steps steps = steps_of(command.file, command.step);
  const WhatIf what_if(steps.recording, command.step, profile);
  const Footprint& footprint = what_if.footprint();
  Json points = Json::array();
  for (const std::size_t bytes : command.memory_bytes) points.push_back(point_of(what_if, bytes));
  for (const double times : command.times) {
    Json point = {{"times", times}};
    point.update(point_of(what_if, bytes_for(footprint.peak_bytes, times)));
    points.push_back(point);
  }
  Json by_hand;
  for (const std::string_view name : kOffloadNames) {
    const WhatIf::ByHand found = what_if.by_hand(name);
    Json entry = {{"memory_bytes", found.memory_bytes}, {"figures", json_of(found.figures)}};
    if (found.figures.failure.empty()) {
      for (const char* policy : {"auto", "planned"})
        entry[policy] = json_of(what_if.step(policy, found.memory_bytes));
    }
    by_hand[std::string(name)] = entry;
  }
  Json smallest;
  for (const std::string_view policy : kPolicyNames)
    smallest[std::string(policy)] = what_if.smallest_memory(policy, kWithin);
  const Json result = {
      {"machine", command.machine},
      {"program", steps.program},
      {"step_found_by", steps.has_marks ? "marks" : "repetition"},
      {"to_device_bytes_per_ns", profile.costs.to_device_bytes_per_ns},
      {"to_host_bytes_per_ns", profile.costs.to_host_bytes_per_ns},
      {"footprint_bytes", footprint.peak_bytes},
      {"largest_kernel_bytes", footprint.largest_kernel_blocks * uvmsim::kBlockBytes},
      {"all_resident", json_of(what_if.all_resident())},
      {"kernel_ns", what_if.kernel_ns()},
      {"smallest_memory_bytes", smallest},
      {"by_hand", by_hand},
      {"points", points}};
  fmt::print("{}\n", result.dump(1, ' ', false, Json::error_handler_t::replace));
}

}  // namespace
}  // namespace uvm::oversubscription

int main(int count, char** arguments) {
  try {
    const auto command = uvm::oversubscription::parse_command(count, arguments);
    if (command) uvm::oversubscription::plan(*command);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "uvmalloc_plan: {}\n", error.what());
    return 2;
  }
}
