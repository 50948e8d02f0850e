// Finds the step that a program repeats, and predicts which blocks its next kernels use.
//
// Two kernels correspond when they use blocks of the same sizes in the same order with the same
// access, and each pair of blocks has the same role. A role is the same block, or two blocks that
// were allocated the same number of kernels before their use. So addresses may differ from step to
// step, and layers of the same shapes are told apart by their parameters.
//
// The step is known as the distance to the corresponding kernel. Of all distances the one is taken
// for which the most kernels before correspond too: the kernels after a longer history say more. So
// micro-batches, networks that train in turn, and an evaluation now and then become one long step,
// and a step that was seen before is known again after its first kernels.
//
// The step is followed from kernel to kernel: a few kernels may be left out, added or exchanged. If
// a kernel differs, and kLeastRun kernels correspond at another distance, that one is followed.
// After more than kMostStrays in a row, or too many in a short time, the step is lost, and nothing
// is predicted until it is found again.
//
// Not thread-safe, like UseLog. Calls no driver.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "hints/oversubscription/policy.hpp"
#include "hints/oversubscription/use_log.hpp"

namespace uvm::live {

class StepLearner {
 public:
  explicit StepLearner(UseLog& log) : log_(log) {}

  // Call this after each kernel that was added to the log.
  void kernel_added();
  // Call this if the program reports the end of a step. Not required, but the step is found sooner.
  void step_boundary();

  bool predicts() const { return distance_ != 0 && run_ >= policy::kLeastRun; }
  // Returns the number of kernels of a step; 0: no step is known.
  std::uint64_t step_kernels() const { return predicts() ? distance_ : 0; }
  // Returns by how many kernels the distance of two uses may be less than a step.
  std::uint64_t slack() const { return std::min(policy::kAgeSlack, step_kernels() / 2); }
  std::uint64_t times_lost() const { return times_lost_; }

  // While predicts(): returns the first kernel after `after` that uses that page of the block.
  // `after` is the newest kernel or a kernel of the next step. Returns nullopt if no use is known.
  // A block that was never used is expected to be used by the next kernel.
  std::optional<KernelNumber> next_use(RecordId id, PageNumber page, KernelNumber after) const;

  // While predicts(): calls visit(page, access, is_new) for the pages of blocks that a coming
  // kernel will use. Returns false if nothing is known about the kernel. A block that is not
  // allocated yet
  // (`is_new`) is expected at its address of one step before, because an allocator that gets the
  // same requests places blocks at the same addresses.
  template <class Visit>
  bool each_coming_page(KernelNumber coming, Visit visit) const {
    const KernelNumber twin = coming - distance_;
    if (coming <= distance_ || !log_.has_kernel(twin)) return false;
    const LoggedKernel& kernel = log_.kernel(twin);
    for (std::uint32_t i = 0; i < kernel.use_count; ++i) {
      const LoggedUse& before = log_.use(kernel.first_use + i);
      const RecordId present = present_block(before.record);
      const RecordId block = present == kNoRecord ? before.record : present;
      const bool is_new = log_.record(before.record).born + distance_ > log_.newest();
      UseLog::each_page(log_.record(block).extent, before.part,
                        [&](PageNumber page) { visit(page, before.access, is_new); });
    }
    return true;
  }

 private:
  RecordId present_block(RecordId id) const;
  // If the kernels correspond, links blocks with equal roles and returns true.
  bool try_to_match(KernelNumber later, KernelNumber earlier);
  // Decides whether uses correspond only if they are of the same parts of blocks. This is required
  // while a step is searched, but not while it is followed, because a step may use another part of
  // a block each time, for example of a data set.
  enum class Parts : std::uint8_t { kSame, kAny };
  bool correspond(KernelNumber later, KernelNumber earlier, Parts parts,
                  bool* any_same_block) const;
  bool has_same_role(const LoggedUse& later, const LoggedUse& earlier,
                     std::uint64_t distance) const;
  void follow();
  void search();
  bool match_near(KernelNumber expected);
  bool follow_longest(std::uint64_t least_kernels);
  std::uint64_t same_kernels(KernelNumber later, KernelNumber earlier,
                             std::uint64_t at_least) const;
  bool may_follow_at(std::uint64_t distance) const;
  bool follow_at(std::uint64_t distance);
  void begin_at(std::uint64_t distance, std::uint64_t run);
  void match_earlier_ones();
  void lose();
  // Returns whether the newest two steps of that length correspond to the steps before them.
  bool repeats_twice(std::uint64_t distance) const;

  UseLog& log_;
  std::uint64_t distance_ = 0;  // distance to the corresponding kernel; 0: not known
  std::uint64_t run_ = 0;       // corresponding kernels since the step was found
  // A kernel without a corresponding kernel adds kStrayWeight. A kernel with one subtracts 1, or
  // sets this to 0 in a step of fewer than kLeastPart kernels.
  std::uint64_t strays_ = 0;
  std::uint64_t times_lost_ = 0;
  // The number of kernels, up to unmatched_until_, that are not linked yet to their counterparts at
  // distance_.
  std::uint64_t unmatched_ = 0;
  KernelNumber unmatched_until_ = 0;
  KernelNumber boundary_ = kBeforeLog;
  std::uint64_t between_boundaries_ = 0;
};

}  // namespace uvm::live
