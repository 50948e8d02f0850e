#include "tools/oversubscription/policies.hpp"

#include <algorithm>

#include "sim/engine/units.hpp"

#include "tools/oversubscription/costly_choices.hpp"
#include "tools/oversubscription/live_moves.hpp"

namespace uvm::oversubscription {
namespace {

using plan::Leaving;
using plan::Move;
using uvmsim::kBlockBytes;
using uvmsim::kPagesPerBlock;
using uvmsim::PageMask;
using uvmsim::PageRange;
using uvmsim::replay::EventKind;
using uvmsim::replay::Recording;

constexpr int kDevice = 0;
// Shorter runs of dead pages are copied: the copy takes less time than a discard call.
constexpr std::size_t kLeastDeadPages = 16;

// Number of streams for each kind of move. Moves without a copy never wait behind copies.
constexpr std::size_t kStreamsEach = 4;
enum MoveStreams : unsigned { kCopiesToHost, kCopiesToDevice, kEmptyToHost, kEmptyToDevice };

// Returns the driver's work for a block, without the copy.
plan::MoveCosts costs_of(const uvmsim::Costs& costs) {
  return {.to_device_bytes_per_ns = costs.to_device_bytes_per_ns,
          .to_host_bytes_per_ns = costs.to_host_bytes_per_ns,
          .arrival_ns = static_cast<std::uint64_t>(
              costs.prefetch_block_ns + costs.populate_block_ns + costs.reclaim_block_ns),
          .leaving_ns = static_cast<std::uint64_t>(costs.prefetch_block_ns)};
}

}  // namespace

std::uint32_t ScheduledMoves::next_stream(unsigned kind, Hints& hints) {
  const std::size_t number = kind * kStreamsEach + used_streams_.at(kind)++ % kStreamsEach;
  return hints.side_stream(kDevice, static_cast<unsigned>(number));
}

void ScheduledMoves::before(std::size_t event, Hints& hints) {
  const auto& at = recording_.events[event];
  if (has_given_up_ || (at.kind != EventKind::kKernel && at.kind != EventKind::kCopy)) return;
  if (!moves_) {
    moves_ = moves_for(hints.usable_bytes(kDevice) / kBlockBytes);
    left_with_.resize(moves_->schedule.moves.size());
    arrival_.resize(order_.order.block_count);
    left_.resize(order_.order.block_count);
    is_too_large_.resize(order_.order.kernels.size());
    for (const std::size_t kernel : moves_->schedule.too_large) is_too_large_[kernel] = true;
    find_returns();
  }
  const std::size_t kernel = order_.kernel_of_event[event];
  if (!follows_order(event, kernel)) {
    give_up(hints);
    return;
  }
  if (kernel != 0) kernel_end_.push_back(hints.record(last_stream_));
  last_stream_ = at.stream;
  send_calls(kernel, hints);
  wait_for_needs(kernel, at.stream, hints);
}

void ScheduledMoves::find_returns() {
  const auto& moves = moves_->schedule.moves;
  keeps_copy_again_.resize(moves.size());
  std::vector<bool> keeps(order_.order.block_count);  // by block, at its next arrival
  for (std::size_t i = moves.size(); i-- > 0;) {
    if (moves[i].leaving != Leaving::kNothing) keeps_copy_again_[i] = keeps[moves[i].victim];
    keeps[moves[i].block] = moves[i].keeps_host_copy;
  }
}

void ScheduledMoves::send_calls(std::size_t kernel, Hints& hints) {
  const auto& calls = moves_->timing.calls;
  std::vector<std::uint32_t> unchanged;  // blocks to evict before the next arrival
  for (; next_call_ < calls.size() && calls[next_call_].before <= kernel; ++next_call_) {
    const std::uint32_t move = calls[next_call_].move;
    if (calls[next_call_].is_arrival) {
      give_up_copies(&unchanged, hints);
      send_arrival(move, hints);
    } else if (moves_->schedule.moves[move].leaving == Leaving::kUnchanged) {
      unchanged.push_back(move);
    } else {
      send_away(move, hints);
    }
  }
  give_up_copies(&unchanged, hints);
}

// Drops the device's copies of blocks that the host also has. Advice takes effect at once. A call
// costs more than a block in its range, so adjacent blocks share a call.
void ScheduledMoves::give_up_copies(std::vector<std::uint32_t>* numbers, Hints& hints) {
  const auto& moves = moves_->schedule.moves;
  const auto victim = [&](std::uint32_t number) { return moves[number].victim; };
  const auto comes_again = [&](std::uint32_t number) { return keeps_copy_again_[number]; };
  std::ranges::sort(*numbers, {}, victim);
  for (auto first = numbers->begin(); first != numbers->end();) {
    auto last = first + 1;
    while (last != numbers->end() && victim(*last) == victim(*(last - 1)) + 1 &&
           comes_again(*last) == comes_again(*first))
      ++last;
    const PageRange pages{pages_of(victim(*first)).first, pages_of(victim(*(last - 1))).last};
    for (auto each = first; each != last; ++each)
      hints.host_wait_for(kernel_end_.at(moves[*each].after - 1));
    hints.advise(pages, uvmsim::Advice::kUnsetReadMostly, uvmsim::kNoLocation);
    if (comes_again(*first))
      hints.advise(pages, uvmsim::Advice::kSetReadMostly, uvmsim::kNoLocation);
    for (auto each = first; each != last; ++each) {
      if (!comes_again(*each)) read_mostly_.erase(victim(*each));
      send_away(*each, hints);
    }
    first = last;
  }
  numbers->clear();
}

bool ScheduledMoves::follows_order(std::size_t event, std::size_t kernel) const {
  const auto& expected = order_.order.kernels[kernel];
  const std::vector<std::uint32_t> used = blocks_of(recording_, recording_.events[event]);
  return std::ranges::equal(used, expected, {}, {}, &plan::BlockUse::block);
}

void ScheduledMoves::give_up(Hints& hints) {
  has_given_up_ = true;
  for (const std::uint32_t block : read_mostly_)
    hints.advise(pages_of(block), uvmsim::Advice::kUnsetReadMostly, uvmsim::kNoLocation);
}

void ScheduledMoves::send_arrival(std::uint32_t number, Hints& hints) {
  const Move& move = moves_->schedule.moves[number];
  const unsigned kind = move.arriving_bytes == 0 ? kEmptyToDevice : kCopiesToDevice;
  const std::uint32_t stream = next_stream(kind, hints);
  const std::uint32_t chunk_from = moves_->timing.chunk_from[number];
  if (chunk_from != plan::kFreeChunk) hints.wait_for(stream, left_with_[chunk_from]);
  if (left_[move.block]) hints.wait_for(stream, *left_[move.block]);
  const PageRange pages = pages_of(move.block);
  if (move.keeps_host_copy && read_mostly_.insert(move.block).second)
    hints.advise(pages, uvmsim::Advice::kSetReadMostly, uvmsim::kNoLocation);
  hints.prefetch(stream, pages, kDevice);
  arrival_[move.block] = hints.record(stream);
}

void ScheduledMoves::send_away(std::uint32_t number, Hints& hints) {
  const Move& move = moves_->schedule.moves[number];
  const PageRange pages = pages_of(move.victim);
  const bool is_copied = move.leaving == Leaving::kCopied;
  const std::uint32_t stream = next_stream(is_copied ? kCopiesToHost : kEmptyToHost, hints);
  if (arrival_[move.victim]) hints.wait_for(stream, *arrival_[move.victim]);
  if (move.after != 0) hints.wait_for(stream, kernel_end_.at(move.after - 1));
  switch (move.leaving) {
    case Leaving::kUnchanged:
      discard_dead_pages(move, stream, hints);
      break;
    case Leaving::kDropped:
      hints.discard(stream, pages);
      break;
    case Leaving::kCopied:
      discard_dead_pages(move, stream, hints);
      hints.prefetch(stream, pages, uvmsim::kHost);
      // A prefetch ends a discard. Without a new discard, the dead pages would be copied back.
      discard_dead_pages(move, stream, hints);
      break;
    case Leaving::kNothing:
      break;
  }
  left_with_[number] = hints.record(stream);
  left_[move.victim] = left_with_[number];
}

void ScheduledMoves::discard_dead_pages(const Move& move, std::uint32_t stream, Hints& hints) {
  const PageMask& live = order_.live_before(move.victim, move.after);
  const std::size_t base = move.victim * kPagesPerBlock;
  for (std::size_t first = 0; first < kPagesPerBlock;) {
    std::size_t last = first;
    while (last < kPagesPerBlock && !live.test(last)) ++last;
    if (last - first >= kLeastDeadPages) hints.discard(stream, {base + first, base + last});
    first = last + 1;
  }
}

void ScheduledMoves::wait_for_needs(std::size_t kernel, std::uint32_t stream, Hints& hints) {
  for (const plan::BlockUse& use : order_.order.kernels[kernel]) {
    if (!is_too_large_[kernel]) repair(use.block, hints);
    if (!arrival_[use.block]) continue;
    hints.wait_for(stream, *arrival_[use.block]);
    arrival_[use.block].reset();
  }
}

// Used if a kernel is too large: the driver has moved blocks, so prefetch the block again.
void ScheduledMoves::repair(std::uint32_t block, Hints& hints) {
  const PageRange pages = pages_of(block);
  if (hints.resident_pages(pages, kDevice) == kPagesPerBlock) return;
  ++repairs_;
  const std::uint32_t stream = next_stream(kCopiesToDevice, hints);
  if (!kernel_end_.empty()) hints.wait_for(stream, kernel_end_.back());
  hints.prefetch(stream, pages, kDevice);
  arrival_[block] = hints.record(stream);
}

plan::TimedSchedule LruPolicy::moves_for(std::size_t chunks) const {
  plan::TimedSchedule result;
  result.schedule = plan::schedule_moves(known_.order, {.chunks = chunks}, plan::LeastRecentUse());
  result.timing = plan::on_demand(result.schedule);
  return result;
}

plan::TimedSchedule PlannedPolicy::moves_for(std::size_t chunks) const {
  using plan::CheapestAbsence;
  using Unit = CheapestAbsence::Unit;
  // An eviction costs driver time and copied bytes. The scarcer of the two matters more, so try
  // several weights.
  const plan::FurthestUse furthest;
  const plan::UnchangedFirst unchanged;
  const std::array absences = {CheapestAbsence(0), CheapestAbsence(kBlockBytes / 2),
                               CheapestAbsence(kBlockBytes), CheapestAbsence(0, Unit::kTime),
                               CheapestAbsence(kBlockBytes, Unit::kTime)};
  // `rested` prefers victims whose last use was at least 1, 4 or 16 round trips of a copy before
  // the next use of their chunk.
  const plan::LeastRecentUse recent;
  const plan::MoveCosts costs = costs_of(costs_);
  const auto copy_ns =
      static_cast<std::uint64_t>(kBlockBytes / std::max(costs.to_host_bytes_per_ns, 1.0) +
                                 kBlockBytes / std::max(costs.to_device_bytes_per_ns, 1.0));
  const std::array rested = {plan::FurthestRested(copy_ns), plan::FurthestRested(4 * copy_ns),
                             plan::FurthestRested(16 * copy_ns)};
  std::vector<const plan::VictimChoice*> choices = {&furthest, &unchanged, &recent};
  for (const CheapestAbsence& each : absences) choices.push_back(&each);
  for (const plan::FurthestRested& each : rested) choices.push_back(&each);
  return plan::fastest(known_.order, {.chunks = chunks, .keeps_host_copies = true}, costs, choices);
}

std::unique_ptr<uvmsim::replay::HintPolicy> make_policy(std::string_view name,
                                                        const Recording& recording,
                                                        const RecordedOrder& order,
                                                        const uvmsim::Costs& costs) {
  if (name == "off") return std::make_unique<OffPolicy>();
  if (name == "driver") return std::make_unique<DriverPolicy>();
  if (name == "lru") return std::make_unique<LruPolicy>(recording, order);
  if (name == "auto") return std::make_unique<LiveMoves>(recording, Policy::kAuto);
  if (name == "planned") return std::make_unique<PlannedPolicy>(recording, order, costs);
  return nullptr;
}

}  // namespace uvm::oversubscription
