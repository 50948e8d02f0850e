// The policies that move memory when it is short: one class each, with the interface HintPolicy.
// Each object serves one run.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "sim/engine/cost_model.hpp"
#include "sim/replay/hint_policy.hpp"

#include "tools/oversubscription/move_schedule.hpp"
#include "tools/oversubscription/move_timing.hpp"
#include "tools/oversubscription/recorded_order.hpp"

namespace uvm::oversubscription {

// A device without unified memory: a program that does not fit does not run. Sends no hints.
class OffPolicy final : public uvmsim::replay::HintPolicy {};

// Unified memory without hints.
class DriverPolicy final : public uvmsim::replay::HintPolicy {};

// Sends the moves of a schedule. Evictions and arrivals are on different streams, so that the
// driver's work for one block overlaps with the copy of another. An eviction waits for the block's
// last use, an arriving block waits for its chunk, and a kernel waits for its blocks. If a kernel
// uses blocks that differ from the recorded order, the policy sends no more moves, and only the
// driver moves pages.
class ScheduledMoves : public uvmsim::replay::HintPolicy {
 public:
  void before(std::size_t event, uvmsim::replay::Hints& hints) final;

  // Returns how many blocks were missing on the device although the schedule had put them there.
  std::size_t repairs() const { return repairs_; }
  bool has_given_up() const { return has_given_up_; }

 protected:
  ScheduledMoves(const uvmsim::replay::Recording& recording, const RecordedOrder& order)
      : recording_(recording), order_(order) {}

 private:
  using Hints = uvmsim::replay::Hints;

  virtual plan::TimedSchedule moves_for(std::size_t chunks) const = 0;

  std::uint32_t next_stream(unsigned kind, Hints& hints);
  bool follows_order(std::size_t event, std::size_t kernel) const;
  void give_up(Hints& hints);
  void find_returns();
  void send_calls(std::size_t kernel, Hints& hints);
  void give_up_copies(std::vector<std::uint32_t>* numbers, Hints& hints);
  void send_arrival(std::uint32_t number, Hints& hints);
  void send_away(std::uint32_t number, Hints& hints);
  void discard_dead_pages(const plan::Move& move, std::uint32_t stream, Hints& hints);
  void wait_for_needs(std::size_t kernel, std::uint32_t stream, Hints& hints);
  void repair(std::uint32_t block, Hints& hints);

  const uvmsim::replay::Recording& recording_;
  const RecordedOrder& order_;
  std::optional<plan::TimedSchedule> moves_;
  std::size_t next_call_ = 0;
  std::uint32_t last_stream_ = 0;  // stream of the previous kernel
  std::array<std::size_t, 4> used_streams_{};
  std::size_t repairs_ = 0;
  bool has_given_up_ = false;
  std::set<std::uint32_t> read_mostly_;                // blocks with that advice
  std::vector<std::optional<std::uint32_t>> arrival_;  // by block: event of its arrival
  std::vector<std::optional<std::uint32_t>> left_;     // by block: event of its eviction
  std::vector<std::uint32_t> left_with_;               // by move: event of the victim's eviction
  std::vector<std::uint32_t> kernel_end_;              // by kernel: event after the kernel
  std::vector<bool> is_too_large_;                     // by kernel
  std::vector<bool> keeps_copy_again_;  // by move: its victim is only read after its return
};

// Evicts the least recently used block when a kernel needs its chunk. Of later uses, it knows only
// which memory is dead.
class LruPolicy final : public ScheduledMoves {
 public:
  LruPolicy(const uvmsim::replay::Recording& recording, const RecordedOrder& order)
      : ScheduledMoves(recording, order), known_(order) {}

 private:
  plan::TimedSchedule moves_for(std::size_t chunks) const override;

  const RecordedOrder& known_;
};

// Evicts by Belady's rule on the recorded order, weighted by cost, and sends arrivals as soon as
// chunks are free.
class PlannedPolicy final : public ScheduledMoves {
 public:
  PlannedPolicy(const uvmsim::replay::Recording& recording, const RecordedOrder& order,
                const uvmsim::Costs& costs)
      : ScheduledMoves(recording, order), known_(order), costs_(costs) {}

 private:
  plan::TimedSchedule moves_for(std::size_t chunks) const override;

  const RecordedOrder& known_;
  const uvmsim::Costs costs_;
};

inline constexpr std::array<std::string_view, 5> kPolicyNames = {"off", "driver", "lru", "auto",
                                                                 "planned"};

// Returns null for an unknown name.
std::unique_ptr<uvmsim::replay::HintPolicy> make_policy(std::string_view name,
                                                        const uvmsim::replay::Recording& recording,
                                                        const RecordedOrder& order,
                                                        const uvmsim::Costs& costs);

}  // namespace uvm::oversubscription
