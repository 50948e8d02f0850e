#include "oversubscription/policies.hpp"

#include <algorithm>

#include <uvmalloc/sim/engine/units.hpp>

namespace uvm::oversubscription {
namespace {

using plan::Leaving;
using plan::Move;
using uvmsim::kBlockBytes;
using uvmsim::kPagesPerBlock;
using uvmsim::PageMask;
using uvmsim::PageRange;
using uvmsim::replay::EventKind;
using uvmsim::replay::Hints;
using uvmsim::replay::Recording;

constexpr int kDevice = 0;
constexpr std::size_t kStreamsEachWay = 4;
// The driver's own work for a block that leaves and one that arrives takes about as long as a copy
// of one block over PCIe 5.
constexpr std::uint64_t kMoveBytes = kBlockBytes;
// A shorter run of dead pages is copied: that takes less time than a call.
constexpr std::size_t kLeastDeadPages = 16;
// Kernels between the last use of a block and the call by which the host lets go of it, so that the
// host, which waits for that use, stays ahead of the device.
constexpr std::size_t kKernelsBehind = 8;

PageRange pages_of(std::uint32_t block) {
  return {block * kPagesPerBlock, (block + 1) * kPagesPerBlock};
}

std::uint32_t leaving_stream(std::size_t number, Hints& hints) {
  return hints.side_stream(kDevice, static_cast<unsigned>(number % kStreamsEachWay));
}
std::uint32_t arrival_stream(std::size_t number, Hints& hints) {
  return hints.side_stream(kDevice,
                           static_cast<unsigned>(kStreamsEachWay + number % kStreamsEachWay));
}

}  // namespace

void ScheduledMoves::before(std::size_t event, Hints& hints) {
  const auto& at = recording_.events[event];
  if (at.kind != EventKind::kKernel && at.kind != EventKind::kCopy) return;
  if (!schedule_) {
    schedule_ = schedule_for(hints.usable_bytes(kDevice) / kBlockBytes);
    sent_.resize(schedule_->moves.size());
    arrival_.resize(order_.order.block_count);
    left_.resize(order_.order.block_count);
    is_too_large_.resize(order_.order.kernels.size());
    for (const std::size_t kernel : schedule_->too_large) is_too_large_[kernel] = true;
  }
  const std::size_t kernel = order_.kernel_of_event[event];
  if (kernel != 0) kernel_end_.push_back(hints.record(last_stream_));
  last_stream_ = at.stream;
  send_due_moves(kernel, hints);
  wait_for_needs(kernel, at.stream, hints);
}

bool ScheduledMoves::is_due(const Move& move, std::size_t kernel) const {
  if (move.need == kernel) return true;
  const std::size_t behind = move.leaving == Leaving::kUnchanged ? kKernelsBehind : 0;
  return move.after + behind <= kernel;
}

void ScheduledMoves::send_due_moves(std::size_t kernel, Hints& hints) {
  const auto& moves = schedule_->moves;
  while (first_unsent_ < moves.size() && sent_[first_unsent_]) ++first_unsent_;
  held_back_.clear();
  for (std::size_t i = first_unsent_; i < moves.size() && moves[i].need <= kernel + kernels_ahead();
       ++i) {
    if (sent_[i]) continue;
    // A block comes back only when it has left.
    const bool is_held_back = std::ranges::find(held_back_, moves[i].block) != held_back_.end();
    if (is_held_back || !is_due(moves[i], kernel)) {
      if (moves[i].leaving != Leaving::kNothing) held_back_.push_back(moves[i].victim);
      continue;
    }
    sent_[i] = true;
    send(moves[i], hints);
  }
}

void ScheduledMoves::send(const Move& move, Hints& hints) {
  const std::uint32_t stream = arrival_stream(arrivals_++, hints);
  if (move.leaving != Leaving::kNothing) {
    left_[move.victim] = send_away(move, hints);
    hints.wait_for(stream, *left_[move.victim]);
  }
  if (left_[move.block]) hints.wait_for(stream, *left_[move.block]);
  const PageRange pages = pages_of(move.block);
  if (move.keeps_host_copy)
    hints.advise(pages, uvmsim::Advice::kSetReadMostly, uvmsim::kNoLocation);
  hints.prefetch(stream, pages, kDevice);
  arrival_[move.block] = hints.record(stream);
}

std::uint32_t ScheduledMoves::send_away(const Move& move, Hints& hints) {
  const PageRange pages = pages_of(move.victim);
  const std::uint32_t stream = leaving_stream(leavings_++, hints);
  if (arrival_[move.victim]) hints.wait_for(stream, *arrival_[move.victim]);
  if (move.after != 0) hints.wait_for(stream, kernel_end_.at(move.after - 1));
  switch (move.leaving) {
    case Leaving::kUnchanged:
      // Of two copies the host's stays. The call takes effect at once.
      if (move.after != 0) hints.host_wait_for(kernel_end_.at(move.after - 1));
      hints.advise(pages, uvmsim::Advice::kUnsetReadMostly, uvmsim::kNoLocation);
      discard_dead_pages(move, stream, hints);
      break;
    case Leaving::kDropped:
      hints.discard(stream, pages);
      break;
    case Leaving::kCopied:
      discard_dead_pages(move, stream, hints);
      hints.prefetch(stream, pages, uvmsim::kHost);
      // A prefetch ends a discard. Without another one the dead pages would come back.
      discard_dead_pages(move, stream, hints);
      break;
    case Leaving::kNothing:
      break;
  }
  return hints.record(stream);
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

// The driver has acted, for a kernel that is too large.
void ScheduledMoves::repair(std::uint32_t block, Hints& hints) {
  const PageRange pages = pages_of(block);
  if (hints.resident_pages(pages, kDevice) == kPagesPerBlock) return;
  ++repairs_;
  const std::uint32_t stream = arrival_stream(arrivals_++, hints);
  if (!kernel_end_.empty()) hints.wait_for(stream, kernel_end_.back());
  hints.prefetch(stream, pages, kDevice);
  arrival_[block] = hints.record(stream);
}

plan::MoveSchedule LruPolicy::schedule_for(std::size_t chunks) const {
  return plan::schedule_moves(known_.order, {.chunks = chunks}, plan::LeastRecentUse());
}

plan::MoveSchedule PlannedPolicy::schedule_for(std::size_t chunks) const {
  return plan::schedule_moves(known_.order, {.chunks = chunks, .keeps_host_copies = true},
                              plan::CheapestAbsence(kMoveBytes));
}

std::unique_ptr<uvmsim::replay::HintPolicy> make_policy(std::string_view name,
                                                        const Recording& recording,
                                                        const RecordedOrder& order) {
  if (name == "off") return std::make_unique<OffPolicy>();
  if (name == "driver") return std::make_unique<DriverPolicy>();
  if (name == "lru") return std::make_unique<LruPolicy>(recording, order);
  if (name == "planned") return std::make_unique<PlannedPolicy>(recording, order);
  return nullptr;
}

}  // namespace uvm::oversubscription
