// uvmalloc_replay TRACE [OPTION...]: replays a trace on uvmalloc and prints the duration. --help
// lists the options. UVMALLOC_RUNTIME selects the machine; for the simulated machine,
// LD_LIBRARY_PATH must contain the stand-ins. Exit code 0; 1 if something differs; 2 if the
// command, the trace or the machine is invalid.
#include <cstdio>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "tools/command_line.hpp"
#include "tools/replay/replayer.hpp"
#include "tools/replay/uvmalloc_target.hpp"

namespace uvm::replay {
namespace {

struct Command {
  std::string file;
  ReplayOptions options;
  unsigned repeat = 1;
  std::optional<std::size_t> budget_bytes;
};

std::size_t budget_of(std::string_view option, std::string_view text) {
  if (const std::optional<std::size_t> size_bytes = parse_size(text)) return *size_bytes;
  throw std::invalid_argument(
      fmt::format("{} is '{}'; accepted: a size such as 512MiB", option, text));
}

// Returns nullopt if the command requests help.
std::optional<Command> parse_command(int count, char** words) {
  Command command;
  CLI::App app("replays a trace on uvmalloc, from one thread, and prints how long it took");
  app.add_option("TRACE", command.file)->required();
  app.add_flag("--check", command.options.check,
               "compares each block with all live ones; a request must fail where it failed in the "
               "trace and only there, and no free, use or move may be refused");
  add_option(&app, "--repeat", &command.repeat, whole_number<unsigned>, "N", "number of runs");
  auto* own = add_option(&app, "--budget", &command.budget_bytes, budget_of, "SIZE",
                         "the memory of the traced machine: requests are compared as with --check");
  auto* other = add_option(&app, "--other-budget", &command.budget_bytes, budget_of, "SIZE",
                           "another amount of memory than the traced machine had: what fails is "
                           "counted, with --check too, and not compared");
  other->excludes(own);
  app.footer("exit code: 0; 1: something differs; 2: the command, trace or machine is of no use");
  if (!read_command(&app, count, words)) return std::nullopt;
  command.options.compare_failures =
      other->empty() && (command.options.check || command.budget_bytes.has_value());
  return command;
}

void print_run(const ReplayOutcome& outcome) {
  const auto nanoseconds = static_cast<double>(outcome.duration.count());
  fmt::print("{} operations in {:.3f} ms, {:.1f} ns each; {} allocations failed; {} mismatches\n",
             outcome.operations, nanoseconds / 1e6,
             outcome.operations == 0 ? 0 : nanoseconds / static_cast<double>(outcome.operations),
             outcome.failed_allocations, outcome.mismatch_count);
  for (const Mismatch& mismatch : outcome.mismatches) {
    fmt::print("event {}: {}\n", mismatch.event, mismatch.text);
  }
}

int replay(const Command& command) {
  const ReplayPlan plan = make_plan(read_trace(command.file));
  Configuration configuration = parse_environment().configuration;
  if (command.budget_bytes) configuration.budget_bytes = command.budget_bytes;
  UvmallocTarget target(configuration, plan.devices);
  Replayer replayer(plan, target);
  if (plan.unknown_blocks != 0) {
    fmt::print("{} events of blocks that the trace does not know are left out\n",
               plan.unknown_blocks);
  }
  std::size_t mismatches = 0;
  for (unsigned run = 0; run < command.repeat; ++run) {
    const ReplayOutcome outcome = replayer.run(command.options);
    if (command.options.check) target.allocator().inspection().check_invariants();
    print_run(outcome);
    mismatches += outcome.mismatch_count;
  }
  return mismatches == 0 ? 0 : 1;
}

}  // namespace
}  // namespace uvm::replay

int main(int count, char** arguments) {
  try {
    const auto command = uvm::replay::parse_command(count, arguments);
    return command ? uvm::replay::replay(*command) : 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "uvmalloc_replay: {}\n", error.what());
    return 2;
  }
}
