// uvmalloc_machine_replay TRACE [OPTION...]: runs a trace on the simulated machine of a profile, in
// virtual time, and prints the steps. --help lists the options. Exit code 0; 1 if memory runs out
// before the trace ends; 2 if the command, the trace or the profile is invalid.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "sim/engine/settings.hpp"
#include "sim/replay/replay_machine.hpp"

#include "tools/command_line.hpp"
#include "tools/machine_replay/moved_memory.hpp"
#include "tools/machine_replay/trace_recording.hpp"

namespace uvm::machine_replay {
namespace {

namespace replay = uvmsim::replay;
using Json = nlohmann::ordered_json;

struct Command {
  std::string file;
  std::string machine;
  std::optional<std::size_t> capacity_bytes;
  std::optional<std::size_t> host_bytes;
  std::string hints = "recorded";
  std::size_t samples = 0;
  std::size_t blocks = 0;
  std::size_t repeat = 1;
  UnfinishedTrace unfinished = UnfinishedTrace::kRefuse;
};

std::size_t size_of(std::string_view option, std::string_view text) {
  const std::optional<std::size_t> bytes = uvmsim::parse_bytes(text);
  if (bytes && *bytes >= uvmsim::kBlockBytes && *bytes <= uvmsim::kLargestRequestBytes)
    return *bytes;
  throw std::invalid_argument(
      fmt::format("{} is '{}'; accepted: a size from 2MiB to 64TiB, such as 512MiB", option, text));
}

std::string hints_of(std::string_view option, std::string_view text) {
  if (text == "none" || text == "recorded") return std::string(text);
  throw std::invalid_argument(fmt::format("{} is '{}'; accepted: none, recorded", option, text));
}

// Returns nullopt if the command requests help.
std::optional<Command> parse_command(int count, char** words) {
  Command command;
  CLI::App app("runs a trace on a simulated machine, in virtual time, and prints JSON");
  app.add_option("TRACE", command.file)->required();
  app.add_option("--machine", command.machine,
                 "a machine of sim/profiles, or a file in TOML; without it the ideal machine");
  add_option(&app, "--capacity", &command.capacity_bytes, size_of, "SIZE",
             "memory of each device, from 2MiB; without it the machine's own");
  add_option(&app, "--host-memory", &command.host_bytes, size_of, "SIZE",
             "memory of the host, from 2MiB; without it the machine's own");
  add_option(&app, "--hints", &command.hints, hints_of, "WORD",
             "none: no hints. recorded: the program's hints (the default)");
  add_option(&app, "--samples", &command.samples, whole_number<std::size_t>, "N",
             "counters and residency after each N events");
  add_option(&app, "--blocks", &command.blocks, whole_number<std::size_t>, "N",
             "the N allocations, and the N call sites, whose touches have moved most");
  add_option(&app, "--repeat", &command.repeat, whole_number<std::size_t>, "N",
             "number of runs; the real time is that of the fastest");
  bool is_unfinished = false;
  app.add_flag("--unfinished", is_unfinished, "of a killed process, up to the last whole chunk");
  app.footer(
      "exit code: 0; 1: memory ends before the trace does; 2: the command, the trace or the "
      "profile is of no use");
  if (!read_command(&app, count, words)) return std::nullopt;
  if (is_unfinished) command.unfinished = UnfinishedTrace::kAccept;
  return command;
}

uvmsim::MachineProfile profile_of(const Command& command) {
  uvmsim::MachineProfile profile;
  if (!command.machine.empty())
    profile = uvmsim::read_profile(uvmsim::profile_path(command.machine));
  if (command.capacity_bytes) profile.capacity_bytes = *command.capacity_bytes;
  if (command.host_bytes) profile.rules.memory.host_bytes = *command.host_bytes;
  uvmsim::follow_memory_kind(&profile);
  profile.rules.memory.host_bytes = uvmsim::host_capacity_bytes(profile);
  return profile;
}

Json json_of(const uvmsim_counters& counters) {
  return {{"kernels", counters.kernels},
          {"faults_device", counters.faults_device},
          {"fault_pages_device", counters.fault_pages_device},
          {"migrated_bytes_to_device", counters.migrated_bytes_to_device},
          {"migrated_bytes_to_host", counters.migrated_bytes_to_host},
          {"migrated_bytes_between_devices", counters.migrated_bytes_between_devices},
          {"populated_bytes_device", counters.populated_bytes_device},
          {"evicted_chunks", counters.evicted_chunks},
          {"evicted_bytes", counters.evicted_bytes},
          {"remote_access_bytes", counters.remote_access_bytes},
          {"advice_calls", counters.advice_calls},
          {"prefetch_calls", counters.prefetch_calls},
          {"discard_calls", counters.discard_calls},
          {"copy_bytes", counters.copy_bytes}};
}

void print(const replay::Recording& recording, const replay::Outcome& outcome,
           const std::vector<std::string>& sites, std::uint64_t real_ns, std::size_t blocks) {
  Json steps = Json::array();
  for (const replay::Step& step : outcome.steps) {
    Json each = {
        {"mark", step.mark}, {"duration_ns", step.duration_ns}, {"kernel_ns", step.kernel_ns}};
    each.update(json_of(step.counters));
    steps.push_back(each);
  }
  Json result = {{"duration_ns", outcome.duration_ns},
                 {"real_ns", real_ns},
                 {"events", recording.events.size()},
                 {"unknown_touches", recording.unknown_touches},
                 {"peak_bytes", outcome.peak_bytes},
                 {"counters", json_of(outcome.counters)},
                 {"steps", steps}};
  if (!outcome.failure.empty()) result["failure"] = outcome.failure;
  if (blocks != 0) {
    result["blocks"] = allocations_that_moved_most(recording, outcome, sites, blocks);
    if (!sites.empty())
      result["call_sites"] = sites_that_moved_most(recording, outcome, sites, blocks);
  }
  if (!outcome.samples.empty()) {
    Json samples = Json::array();
    for (const replay::Sample& sample : outcome.samples) {
      Json each = {{"event", sample.event},
                   {"at_ns", sample.at_ns},
                   {"recorded_ns", recording.events[sample.event].recorded_ns},
                   {"resident_bytes", sample.resident_bytes}};
      each.update(json_of(sample.counters));
      samples.push_back(each);
    }
    result["samples"] = samples;
  }
  fmt::print("{}\n", result.dump(1, ' ', false, Json::error_handler_t::replace));
}

int replay_command(const Command& command) {
  const uvmsim::MachineProfile profile = profile_of(command);
  std::vector<std::string> sites;
  const replay::Recording recording = [&] {
    const Trace trace = read_trace(command.file, command.unfinished);
    sites = call_sites_of(trace);
    try {
      return recording_of(trace);
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument(command.file + ": " + error.what());
    }
  }();
  replay::Outcome outcome;
  std::uint64_t fastest_ns = ~std::uint64_t{0};
  for (std::size_t run = 0; run < command.repeat; ++run) {
    std::unique_ptr<replay::HintPolicy> policy = std::make_unique<replay::NoHints>();
    if (command.hints == "recorded") policy = std::make_unique<replay::RecordedHints>();
    const auto start = std::chrono::steady_clock::now();
    outcome = replay::run(recording, profile, *policy, {.sample_every = command.samples});
    const auto taken = std::chrono::steady_clock::now() - start;
    fastest_ns =
        std::min(fastest_ns, static_cast<std::uint64_t>(std::chrono::nanoseconds(taken).count()));
  }
  print(recording, outcome, sites, fastest_ns, command.blocks);
  return outcome.failure.empty() ? 0 : 1;
}

}  // namespace
}  // namespace uvm::machine_replay

int main(int count, char** arguments) {
  try {
    const auto command = uvm::machine_replay::parse_command(count, arguments);
    return command ? uvm::machine_replay::replay_command(*command) : 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "uvmalloc_machine_replay: {}\n", error.what());
    return 2;
  }
}
