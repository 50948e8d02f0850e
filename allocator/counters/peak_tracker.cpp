#include "allocator/counters/peak_tracker.hpp"

#include <algorithm>

#include "allocator/policy/allocation_policy.hpp"

namespace uvm {
namespace {

Amounts larger(const Amounts& left, const Amounts& right) {
  return {std::max(left.blocks, right.blocks), std::max(left.bytes, right.bytes),
          std::max(left.requested_bytes, right.requested_bytes)};
}

}  // namespace

void HeadroomShares::clear() {
  takes_part_.clear();
  parties_ = 0;
  asking_ = kNobody;
}

void HeadroomShares::add(bool has_allocated, bool asks) {
  if (asks) asking_ = takes_part_.size();
  takes_part_.push_back(has_allocated || asks);
  parties_ += has_allocated || asks ? 1 : 0;
}

std::int64_t HeadroomShares::part(std::size_t thread, std::int64_t room) const {
  if (parties_ == 0) return room / static_cast<std::int64_t>(takes_part_.size());
  if (!takes_part_[thread]) return 0;
  if (asking_ == kNobody) return room / parties_;
  const std::int64_t each = room / (policy::kHeadroomParts * parties_);
  return thread == asking_ ? room - (parties_ - 1) * each : each;
}

void PeakTracker::aggregate(std::size_t counter, std::span<ThreadCounters* const> thread_counts,
                            const ThreadCounters& ended, const HeadroomShares& shares) {
  for (std::size_t of = 0; of < kSums; ++of) {
    Amounts sum = ended.live(of);
    for (const ThreadCounters* counts : thread_counts) sum += counts->live(of);
    Amounts& peak = counters_[counter].peaks[of];
    peak = larger(peak, sum);
    const Amounts room = peak - sum;
    for (std::size_t thread = 0; thread < thread_counts.size(); ++thread) {
      thread_counts[thread]->set_limit(of,
                                       thread_counts[thread]->live(of) + shares.part(thread, room));
    }
  }
}

void PeakTracker::reset_totals(std::size_t counter, const ThreadCounters& sum) {
  for (std::size_t of = 0; of < kSums; ++of) {
    counters_[counter].increased_before[of] = sum.total(of);
    counters_[counter].decreased_before[of] = sum.total(of) - sum.live(of);
  }
}

Amounts PeakTracker::increased(std::size_t counter, std::size_t of,
                               const ThreadCounters& sum) const {
  return sum.total(of) - counters_[counter].increased_before[of];
}

Amounts PeakTracker::decreased(std::size_t counter, std::size_t of,
                               const ThreadCounters& sum) const {
  return sum.total(of) - sum.live(of) - counters_[counter].decreased_before[of];
}

}  // namespace uvm
