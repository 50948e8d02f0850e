// Finds the step that a program repeats, and says which blocks its next kernels use.
//
// Two kernels correspond when they use blocks of the same sizes in the same order with the same
// access, and each pair of blocks has the same role. A role is the same block, or two blocks that
// were allocated the same number of kernels before their use. So addresses may differ from step to
// step, and layers of the same shapes are told apart by their parameters.
//
// The step is known as the distance to the corresponding kernel. It is followed from kernel to
// kernel: a few kernels may be left out, added or exchanged. After more than kMostStrays in a row,
// or too many in a short time, the step is lost, and nothing is predicted until it is found again.
//
// Not thread-safe, and knows no driver, as UseLog.
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

  // After each kernel that was added to the log.
  void kernel_added();
  // The program says that a step ends here. A help, not a need.
  void step_boundary();

  bool predicts() const { return distance_ != 0 && run_ >= policy::kLeastRun; }
  // Kernels of a step; 0: no step is known.
  std::uint64_t step_kernels() const { return predicts() ? distance_ : 0; }
  // Kernels by which the distance of two uses may be less than a step.
  std::uint64_t slack() const { return std::min(policy::kAgeSlack, step_kernels() / 2); }
  std::uint64_t times_lost() const { return times_lost_; }

  // The first kernel after `after` that uses that page of the block, while predicts(). `after` is
  // the newest kernel or one of the next step. nullopt: no use is known. A block without any use so
  // far is used by the next kernel.
  std::optional<KernelNumber> next_use(RecordId id, PageNumber page, KernelNumber after) const;

  // Visits the pages of blocks that a coming kernel will use, with its access, while predicts().
  // False: nothing is known of the kernel. A block that is not allocated yet is expected where it
  // was one step before: an allocator that gets the same requests finds the same places.
  template <class Visit>
  bool each_coming_page(KernelNumber coming, Visit visit) const {
    const KernelNumber twin = coming - distance_;
    if (coming <= distance_ || !log_.has_kernel(twin)) return false;
    const LoggedKernel& kernel = log_.kernel(twin);
    for (std::uint32_t i = 0; i < kernel.use_count; ++i) {
      const LoggedUse& before = log_.use(kernel.first_use + i);
      const RecordId present = present_block(before.record);
      const RecordId block = present == kNoRecord ? before.record : present;
      UseLog::each_page(log_.record(block).extent, before.part,
                        [&](PageNumber page) { visit(page, before.access); });
    }
    return true;
  }

 private:
  RecordId present_block(RecordId id) const;
  // The blocks of equal role are linked if the kernels correspond.
  bool try_to_match(KernelNumber later, KernelNumber earlier);
  // Whether a step is searched, in which uses of the same parts of blocks correspond, or followed.
  // A step may use another part of a block each time, as of a data set.
  enum class Parts : std::uint8_t { kSame, kAny };
  bool correspond(KernelNumber later, KernelNumber earlier, Parts parts,
                  bool* any_same_block) const;
  bool has_same_role(const LoggedUse& later, const LoggedUse& earlier,
                     std::uint64_t distance) const;
  void follow();
  void search();
  bool follow_at(std::uint64_t distance);
  void lose();
  // Whether the newest two steps correspond to those before, for a step of that length.
  bool repeats_twice(std::uint64_t distance) const;

  UseLog& log_;
  std::uint64_t distance_ = 0;  // to the corresponding kernel; 0: none is known
  std::uint64_t run_ = 0;       // corresponding kernels since the step was found
  // kStrayWeight for each kernel without one. A kernel with one takes 1 away, or all in a step of
  // fewer than kLeastPart kernels.
  std::uint64_t strays_ = 0;
  std::uint64_t times_lost_ = 0;
  // A part of a step may repeat too, as a micro-batch does before the optimizer runs. A distance
  // that was lost twice is taken for such a part, and for a time only longer ones are searched.
  std::uint64_t lost_distance_ = 0;
  std::uint64_t least_distance_ = 0;
  KernelNumber searches_longer_until_ = 0;
  KernelNumber boundary_ = kBeforeLog;
  std::uint64_t between_boundaries_ = 0;
};

}  // namespace uvm::live
