// Drives an allocator with the operations of a plan: either as fast as possible, to measure it, or
// comparing every block with a model of live blocks. One thread replays the calls of all threads,
// in the trace's order. The replayer owns its blocks and frees those that the trace does not free.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tools/replay/live_ranges.hpp"
#include "tools/replay/replay_plan.hpp"
#include "tools/replay/replay_target.hpp"

namespace uvm::replay {

struct Mismatch {
  std::size_t event = 0;  // number of the event in the trace
  std::string text;       // one line
};

struct ReplayOptions {
  // Compares each block with all live blocks. Counts a refused free, use or move as a mismatch.
  bool check = false;
  // For a target with the memory of the traced machine: a request must fail if, and only if, it
  // failed in the trace.
  bool compare_failures = false;
};

struct ReplayOutcome {
  std::size_t operations = 0;
  std::size_t failed_allocations = 0;  // failed on the target
  std::chrono::nanoseconds duration{0};
  std::size_t mismatch_count = 0;
  std::vector<Mismatch> mismatches;  // the first kMostMismatches
};
inline constexpr std::size_t kMostMismatches = 100;

class Replayer {
 public:
  // Both arguments must outlive the replayer. Calls the target's prepare().
  Replayer(const ReplayPlan& plan, ReplayTarget& target);

  // Runs all operations, then frees the remaining blocks, which does not count in the duration. If
  // such a free is refused, that is a mismatch of the last operation's event. Skips operations on a
  // block if its allocation failed. May be called again.
  ReplayOutcome run(const ReplayOptions& options);

 private:
  template <bool Check>
  void replay();
  void* allocate(const ReplayOperation& operation);
  void check_block(std::size_t index, void* block);
  void check_outcome(std::size_t index, bool succeeded);
  void check_taken(std::size_t index, bool taken);
  void free_remaining();
  void mismatch(std::size_t index, std::string text);

  const ReplayPlan& plan_;
  ReplayTarget& target_;
  std::vector<void*> blocks_;  // by slot; nullptr: none
  LiveRanges live_;
  ReplayOptions options_;
  ReplayOutcome outcome_;
};

}  // namespace uvm::replay
