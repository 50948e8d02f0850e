#include "hints/oversubscription/step_learner.hpp"

#include <algorithm>

#include "hints/oversubscription/policy.hpp"

namespace uvm::live {

void StepLearner::kernel_added() {
  if (distance_ != 0) {
    match_earlier_ones();
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
  if (match_near(newest - distance_) || follow_longest(policy::kLeastRun)) return;
  // The kernel counts as added, so that the next kernel has the same twin.
  ++distance_;
  strays_ += policy::kStrayWeight;
  if (strays_ <= policy::kMostStrays * policy::kStrayWeight &&
      log_.has_kernel(newest + 1 - distance_))
    return;
  lose();
}

// Returns whether the newest kernel corresponds to the expected kernel, or to one soon after it.
bool StepLearner::match_near(KernelNumber expected) {
  const KernelNumber newest = log_.newest();
  for (KernelNumber twin = expected; twin < newest && twin <= expected + policy::kAgeSlack;
       ++twin) {
    if (!log_.has_kernel(twin) || !try_to_match(newest, twin)) continue;
    distance_ = newest - twin;
    strays_ = distance_ < policy::kLeastPart || strays_ == 0 ? 0 : strays_ - 1;
    ++run_;
    return true;
  }
  return false;
}

void StepLearner::lose() {
  if (predicts()) ++times_lost_;
  distance_ = run_ = strays_ = 0;
}

void StepLearner::search() {
  if (between_boundaries_ != 0 && follow_at(between_boundaries_)) return;
  (void)follow_longest(policy::kComparedKernels);
}

// Follows at the distance at which the most consecutive kernels up to the newest one correspond; if
// distances are equal in this, at the shortest. Returns false if `least_kernels` correspond at
// none.
bool StepLearner::follow_longest(std::uint64_t least_kernels) {
  const KernelNumber newest = log_.newest();
  const LoggedKernel& kernel = log_.kernel(newest);
  std::uint64_t longest = least_kernels - 1;
  std::uint64_t distance = 0;
  for (std::uint32_t i = 0; i < std::min(kernel.use_count, policy::kMostComparedBlocks); ++i) {
    UseNumber use = kernel.first_use + i;
    for (std::size_t back = 0; back < policy::kMostUsesBack; ++back) {
      use = log_.use(use).previous;
      if (!log_.has_use(use)) break;
      const KernelNumber earlier = log_.use(use).kernel;
      const std::uint64_t same = same_kernels(newest, earlier, longest + 1);
      if (same <= longest || !may_follow_at(newest - earlier)) continue;
      longest = same;
      distance = newest - earlier;
    }
  }
  if (distance == 0) return false;
  begin_at(distance, longest);
  return true;
}

// Returns how many consecutive kernels up to `later` correspond to those up to `earlier`. In a long
// run of equal shapes it compares only some kernels, further and further apart.
std::uint64_t StepLearner::same_kernels(KernelNumber later, KernelNumber earlier,
                                        std::uint64_t at_least) const {
  bool any_same_block = false;
  // A cheap comparison first: most kernels that only look alike differ in the kernel before.
  if (!log_.has_kernel(earlier - 1) ||
      !correspond(later - 1, earlier - 1, Parts::kAny, &any_same_block))
    return 0;
  const std::uint64_t same = log_.same_shapes(later, earlier, at_least);
  if (same < at_least) return 0;
  for (std::uint64_t back = 0; back < same; back += 1 + back / policy::kComparedKernels) {
    if (!correspond(later - back, earlier - back, Parts::kAny, &any_same_block)) return back;
  }
  return same;
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

// At least one block must be the same, because blocks of the same sizes and ages occur in each
// layer. If all blocks are temporary, two whole steps must correspond.
bool StepLearner::may_follow_at(std::uint64_t distance) const {
  const KernelNumber newest = log_.newest();
  bool any_same_block = false;
  for (std::uint64_t back = 0; back < policy::kComparedKernels; ++back) {
    const KernelNumber later = newest - back;
    if (later <= distance || !log_.has_kernel(later - distance)) return false;
    if (!correspond(later, later - distance, Parts::kSame, &any_same_block)) return false;
  }
  return any_same_block || repeats_twice(distance);
}

void StepLearner::begin_at(std::uint64_t distance, std::uint64_t run) {
  distance_ = distance;
  run_ = run;
  strays_ = 0;
  unmatched_until_ = log_.newest();
  unmatched_ = std::min(run, distance);
  match_earlier_ones();
}

// Kernels that were logged before the step was found are linked to kernels at another distance, or
// to none. Each call links a few of them to their counterparts at distance_, the newest first.
void StepLearner::match_earlier_ones() {
  const std::uint64_t kernels = std::min(unmatched_, policy::kMatchedAtOnce);
  unmatched_ -= kernels;
  for (std::uint64_t i = 0; i < kernels; ++i, --unmatched_until_) {
    if (log_.has_kernel(unmatched_until_ - distance_))
      try_to_match(unmatched_until_, unmatched_until_ - distance_);
  }
}

bool StepLearner::follow_at(std::uint64_t distance) {
  if (!may_follow_at(distance)) return false;
  begin_at(distance, policy::kComparedKernels);
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
