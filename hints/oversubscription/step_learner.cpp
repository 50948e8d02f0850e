#include "hints/oversubscription/step_learner.hpp"

#include <algorithm>

#include "hints/oversubscription/policy.hpp"

namespace uvm::live {

void StepLearner::kernel_added() {
  if (distance_ != 0) {
    follow();
  } else {
    search();
  }
}

void StepLearner::step_boundary() {
  const KernelNumber now = log_.newest();
  between_boundaries_ = boundary_ == kBeforeLog ? 0 : now - boundary_;
  boundary_ = now;
}

void StepLearner::follow() {
  const KernelNumber newest = log_.newest();
  const KernelNumber expected = newest - distance_;
  for (KernelNumber twin = expected; twin < newest && twin <= expected + policy::kAgeSlack;
       ++twin) {
    if (!log_.has_kernel(twin) || !try_to_match(newest, twin)) continue;
    distance_ = newest - twin;
    strays_ = distance_ < policy::kLeastPart || strays_ == 0 ? 0 : strays_ - 1;
    ++run_;
    return;
  }
  // The kernel counts as added, so that the next kernel has the same twin.
  ++distance_;
  strays_ += policy::kStrayWeight;
  if (strays_ <= policy::kMostStrays * policy::kStrayWeight &&
      log_.has_kernel(newest + 1 - distance_))
    return;
  lose();
}

void StepLearner::lose() {
  if (predicts()) {
    ++times_lost_;
    const bool is_lost_again = distance_ <= lost_distance_ + lost_distance_ / 4 &&
                               lost_distance_ <= distance_ + distance_ / 4;
    lost_distance_ = is_lost_again ? std::max(lost_distance_, distance_) : distance_;
    if (is_lost_again && lost_distance_ >= policy::kLeastPart) {
      least_distance_ = lost_distance_ + policy::kAgeSlack;
      searches_longer_until_ = log_.newest() + policy::kPartsOfStep * lost_distance_;
    }
  }
  distance_ = run_ = strays_ = 0;
}

void StepLearner::search() {
  const KernelNumber newest = log_.newest();
  if (between_boundaries_ != 0 && follow_at(between_boundaries_)) return;
  const LoggedKernel& kernel = log_.kernel(newest);
  for (std::uint32_t i = 0; i < std::min(kernel.use_count, policy::kMostComparedBlocks); ++i) {
    UseNumber use = kernel.first_use + i;
    for (std::size_t back = 0; back < policy::kMostUsesBack; ++back) {
      use = log_.use(use).previous;
      if (!log_.has_use(use)) break;
      if (follow_at(newest - log_.use(use).kernel)) return;
    }
  }
}

bool StepLearner::repeats_twice(std::uint64_t distance) const {
  const std::uint64_t compared = std::max(2 * distance, policy::kTemporaryRun);
  if (compared > policy::kMostCompared) return false;
  bool any_same_block = false;
  const KernelNumber newest = log_.newest();
  for (std::uint64_t back = policy::kComparedKernels; back < compared; ++back) {
    const KernelNumber later = newest - back;
    if (newest <= back + distance || !log_.has_kernel(later - distance)) return false;
    if (!correspond(later, later - distance, Parts::kSame, &any_same_block)) return false;
  }
  return true;
}

// Begins to follow the step of length `distance` if the newest kernels correspond to the kernels at
// this distance. At least one block must be the same, because blocks of the same sizes and ages
// occur in each layer. If all blocks are temporary, two whole steps must correspond.
bool StepLearner::follow_at(std::uint64_t distance) {
  const KernelNumber newest = log_.newest();
  if (distance <= least_distance_ && newest < searches_longer_until_) return false;
  bool any_same_block = false;
  for (std::uint64_t back = 0; back < policy::kComparedKernels; ++back) {
    const KernelNumber later = newest - back;
    if (later <= distance || !log_.has_kernel(later - distance)) return false;
    if (!correspond(later, later - distance, Parts::kSame, &any_same_block)) return false;
  }
  if (!any_same_block && !repeats_twice(distance)) return false;
  distance_ = distance;
  run_ = policy::kComparedKernels;
  strays_ = 0;
  for (std::uint64_t back = policy::kComparedKernels; back-- > 0;)
    try_to_match(newest - back, newest - back - distance);
  return true;
}

bool StepLearner::has_same_role(const LoggedUse& later, const LoggedUse& earlier,
                                std::uint64_t distance) const {
  if (later.access != earlier.access) return false;
  if (later.record == earlier.record) return true;
  const BlockRecord& now = log_.record(later.record);
  const BlockRecord& before = log_.record(earlier.record);
  if (now.extent.size_bytes != before.extent.size_bytes) return false;
  if (now.born <= before.born) return false;
  const std::uint64_t age = now.born - before.born;
  return age + policy::kAgeSlack >= distance && age <= distance + policy::kAgeSlack;
}

bool StepLearner::correspond(KernelNumber later, KernelNumber earlier, Parts parts,
                             bool* any_same_block) const {
  const LoggedKernel& now = log_.kernel(later);
  const LoggedKernel& before = log_.kernel(earlier);
  if (now.use_count != before.use_count) return false;
  for (std::uint32_t i = 0; i < now.use_count; ++i) {
    const LoggedUse& use = log_.use(now.first_use + i);
    const LoggedUse& twin = log_.use(before.first_use + i);
    if (!has_same_role(use, twin, later - earlier)) return false;
    if (parts == Parts::kSame && use.part.first != twin.part.first) return false;
    *any_same_block |= use.record == twin.record;
  }
  return true;
}

bool StepLearner::try_to_match(KernelNumber later, KernelNumber earlier) {
  bool any_same_block = false;
  if (!correspond(later, earlier, Parts::kAny, &any_same_block)) return false;
  const LoggedKernel& now = log_.kernel(later);
  const LoggedKernel& before = log_.kernel(earlier);
  for (std::uint32_t i = 0; i < now.use_count; ++i)
    log_.set_twin(now.first_use + i, before.first_use + i);
  return true;
}

RecordId StepLearner::present_block(RecordId id) const {
  if (log_.record(id).is_live) return id;
  const RecordId successor = log_.record(id).successor;
  return successor != kNoRecord && log_.record(successor).is_live ? successor : kNoRecord;
}

std::optional<KernelNumber> StepLearner::next_use(RecordId id, PageNumber page,
                                                  KernelNumber after) const {
  const BlockRecord& record = log_.record(id);
  if (record.last_use == kNoUse)
    return record.born == kBeforeLog ? std::nullopt : std::optional(after + 1);
  const UseNumber twin = log_.use(record.last_use).twin;
  if (twin == kNoUse || !log_.has_use(twin)) return std::nullopt;
  // The uses since the twin are the uses of one step.
  const std::size_t number = page - page_of(record.extent.address);
  std::optional<KernelNumber> first;
  for (UseNumber next = log_.use(twin).next; log_.has_use(next); next = log_.use(next).next) {
    const LoggedUse& use = log_.use(next);
    if (use.part.covers(number)) {
      if (use.kernel + distance_ > after) return use.kernel + distance_;
      if (!first) first = use.kernel + 2 * distance_;
    }
    if (next == record.last_use) break;
  }
  return first;
}

}  // namespace uvm::live
