// uvmalloc_replay TRACE [OPTION...]: replays a trace on uvmalloc and prints the duration. kUsage
// has the options. UVMALLOC_RUNTIME selects the machine; for the simulated one, LD_LIBRARY_PATH
// must contain the stand-ins. Exit code 0; 1 if something differs; 2 if the command, the trace or
// the machine is invalid.
#include <cstdio>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "tools/command_words.hpp"
#include "tools/replay/replayer.hpp"
#include "tools/replay/uvmalloc_target.hpp"

namespace uvm::replay {
namespace {

constexpr std::string_view kUsage =
    "usage: uvmalloc_replay TRACE [--check] [--repeat N] [--budget SIZE | --other-budget SIZE]";

constexpr std::string_view kHelp =
    R"(replays a trace on uvmalloc, from one thread, and prints how long it took

  --check              compares each block with all live ones; a request must fail where it failed in
                       the trace and only there, and no free, use or move may be refused
  --repeat N           so many times
  --budget SIZE        the memory of the traced machine: requests are compared as with --check
  --other-budget SIZE  another amount of memory than the traced machine had: what fails is counted,
                       with --check too, and not compared

exit code: 0, 1 where something differs, 2 where the command, the trace or the machine is of no use
)";

struct Command {
  std::string file;
  ReplayOptions options;
  unsigned repeat = 1;
  std::optional<std::size_t> budget_bytes;
  bool help = false;
};

std::size_t budget_of(std::string_view option, std::string_view text) {
  if (const std::optional<std::size_t> size_bytes = parse_size(text)) return *size_bytes;
  throw std::invalid_argument(
      fmt::format("{} is '{}'; accepted: a size such as 512MiB", option, text));
}

Command parse_command(int count, char** arguments) {
  Command command;
  bool other_memory = false;
  CommandWords words(count, arguments);
  while (words.next()) {
    const std::string_view word = words.word();
    if (word == "--help" || word == "-h") {
      command.help = true;
      return command;
    }
    if (word == "--check") {
      command.options.check = true;
    } else if (word == "--repeat") {
      command.repeat = whole_number<unsigned>(word, words.value());
    } else if (word == "--budget" || word == "--other-budget") {
      if (command.budget_bytes) throw std::invalid_argument("one budget only");
      command.budget_bytes = budget_of(word, words.value());
      other_memory = word == "--other-budget";
    } else if (word.starts_with("-") || !command.file.empty()) {
      throw std::invalid_argument(fmt::format("'{}' is not understood; {}", word, kUsage));
    } else {
      command.file = word;
    }
  }
  if (command.file.empty()) throw std::invalid_argument(std::string(kUsage));
  command.options.compare_failures =
      !other_memory && (command.options.check || command.budget_bytes.has_value());
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
  if (command.help) {
    fmt::print("{}\n{}", kUsage, kHelp);
    return 0;
  }
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
    return uvm::replay::replay(uvm::replay::parse_command(count, arguments));
  } catch (const std::exception& error) {
    fmt::print(stderr, "uvmalloc_replay: {}\n", error.what());
    return 2;
  }
}
