#include "tools/oversubscription/move_schedule.hpp"

#include <algorithm>
#include <utility>

namespace uvm::plan {
namespace {

class Scheduler {
 public:
  Scheduler(const UseOrder& order, const ScheduleOptions& options, const VictimChoice& choice)
      : order_(order), options_(options), choice_(choice), blocks_(order.block_count) {
    for (std::size_t kernel = 0; kernel < order.kernels.size(); ++kernel)
      for (const BlockUse& use : order.kernels[kernel])
        blocks_.at(use.block).uses.push_back({kernel, use.live_bytes});
    starts_ns_.push_back(0);
    for (const std::uint64_t duration_ns : order.kernel_ns)
      starts_ns_.push_back(starts_ns_.back() + duration_ns);
  }

  MoveSchedule make() {
    for (std::size_t kernel = 0; kernel < order_.kernels.size(); ++kernel) run(kernel);
    return std::move(schedule_);
  }

 private:
  struct Use {
    std::size_t kernel;
    std::uint64_t live_bytes;
  };
  struct Block {
    std::vector<Use> uses;
    std::size_t next = 0;  // index in `uses`
    std::size_t last_use = 0;
    std::size_t left_after = 0;  // Move::after of the move that last evicted it
    std::size_t arrival = 0;     // index in the schedule's moves
    bool is_here = false;
    bool is_changed = false;  // written since it arrived
    bool is_needed = false;   // the current kernel needs it
  };

  void run(std::size_t kernel) {
    const auto& uses = order_.kernels[kernel];
    const std::size_t wanted = std::min(uses.size(), options_.chunks);
    if (wanted < uses.size()) schedule_.too_large.push_back(kernel);
    for (std::size_t i = 0; i < wanted; ++i) blocks_[uses[i].block].is_needed = true;
    for (std::size_t i = 0; i < wanted; ++i) {
      if (!blocks_[uses[i].block].is_here) bring(uses[i], kernel);
    }
    for (const BlockUse& use : uses) {
      Block& block = blocks_[use.block];
      block.is_needed = false;
      block.is_changed |= use.writes;
      block.last_use = kernel;
      ++block.next;
    }
  }

  void bring(const BlockUse& use, std::size_t kernel) {
    Block& block = blocks_[use.block];
    Move move{.block = use.block, .arriving_bytes = use.live_bytes, .need = kernel};
    if (here_.size() == options_.chunks) take_chunk(&move);
    move.after = std::max(move.after, block.left_after);
    block.is_here = true;
    // A block without earlier contents has no copy on the host, so it counts as changed.
    block.is_changed = use.live_bytes == 0;
    block.arrival = schedule_.moves.size();
    here_.push_back(use.block);
    schedule_.arriving_bytes += move.arriving_bytes;
    schedule_.leaving_bytes += move.leaving_bytes;
    schedule_.moves.push_back(move);
  }

  // Gives the move a free chunk, or the chunk of an evicted block.
  void take_chunk(Move* move) {
    candidates_.clear();
    for (const std::uint32_t number : here_) {
      if (!blocks_[number].is_needed) candidates_.push_back(candidate(number, move->need));
    }
    const Candidate chosen = candidates_[choice_.choose(candidates_)];
    Block& victim = blocks_[chosen.block];
    victim.is_here = false;
    std::erase(here_, chosen.block);
    move->victim = chosen.block;
    move->leaving_bytes = chosen.copied_back_bytes;
    move->after = victim.left_after = chosen.last_use + 1;
    if (chosen.copied_back_bytes != 0) {
      move->leaving = Leaving::kCopied;
    } else if (chosen.live_bytes == 0) {
      move->leaving = Leaving::kDropped;
    } else {
      move->leaving = Leaving::kUnchanged;
      schedule_.moves[victim.arrival].keeps_host_copy = true;
    }
  }

  Candidate candidate(std::uint32_t number, std::size_t kernel) const {
    const Block& block = blocks_[number];
    Candidate result{.block = number, .last_use = block.last_use, .kernel = kernel};
    if (starts_ns_.size() > kernel) {
      result.away_ns = kNever;
      result.rested_ns = starts_ns_[kernel] - starts_ns_[block.last_use + 1];
    }
    if (block.next < block.uses.size()) {
      result.next_use = block.uses[block.next].kernel;
      result.live_bytes = block.uses[block.next].live_bytes;
      if (starts_ns_.size() > result.next_use)
        result.away_ns = starts_ns_[result.next_use] - starts_ns_[kernel];
    } else if (number < order_.live_at_end.size()) {
      result.live_bytes = order_.live_at_end[number];
    }
    const bool leaves_free = options_.keeps_host_copies && !block.is_changed;
    result.copied_back_bytes = leaves_free ? 0 : result.live_bytes;
    return result;
  }

  const UseOrder& order_;
  const ScheduleOptions options_;
  const VictimChoice& choice_;
  std::vector<Block> blocks_;
  std::vector<std::uint64_t> starts_ns_;  // start of each kernel; empty: durations unknown
  std::vector<std::uint32_t> here_;
  std::vector<Candidate> candidates_;
  MoveSchedule schedule_;
};

}  // namespace

MoveSchedule schedule_moves(const UseOrder& order, const ScheduleOptions& options,
                            const VictimChoice& choice) {
  return Scheduler(order, options, choice).make();
}

}  // namespace uvm::plan
