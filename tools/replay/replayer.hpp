// Drives an allocator with the operations of a plan. It either goes as fast as it can, to measure,
// or compares every block with a model of live blocks. One thread replays the calls of all threads,
// in the trace's order. It owns the blocks that it holds, and frees those that the trace leaves.
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
  std::size_t event = 0;  // in the trace
  std::string text;       // one line
};

struct ReplayOptions {
  // Compares each block with all live ones, and takes no refusal of a free, a use or a move.
  bool check = false;
  // The target has the memory of the traced machine: a request must fail where it failed in the
  // trace, and only there.
  bool compare_failures = false;
};

struct ReplayOutcome {
  std::size_t operations = 0;
  std::size_t failed_allocations = 0;  // by the target
  std::chrono::nanoseconds duration{0};
  std::size_t mismatch_count = 0;
  std::vector<Mismatch> mismatches;  // the first kMostMismatches
};
inline constexpr std::size_t kMostMismatches = 100;

class Replayer {
 public:
  // Both outlive the replayer. prepare() of the target is called at once.
  Replayer(const ReplayPlan& plan, ReplayTarget& target);

  // From the first operation to the last; then frees what is left, outside of the duration. A
  // refusal there is a mismatch of the last operation's event.
  // Repeatable. A block whose allocation failed is left out of what follows.
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
