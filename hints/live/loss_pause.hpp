// A learned step that is lost again and again is not worth its wrong moves: after so many losses
// within kLossKernels a plan pauses for kPauseKernels. Counts of kernels and losses are totals.
#pragma once

#include <cstdint>

namespace uvm::live {

class LossPause {
 public:
  static constexpr std::uint64_t kMostLosses = 4;
  static constexpr std::uint64_t kLossKernels = 4096;
  static constexpr std::uint64_t kPauseKernels = 16384;

  void kernel_added(std::uint64_t kernels, std::uint64_t losses) {
    const bool is_new_count = kernels - since_ > kLossKernels;
    const bool has_too_many = losses - losses_before_ >= kMostLosses;
    if (!is_new_count && !has_too_many) return;
    if (has_too_many && !is_on(kernels)) until_ = kernels + kPauseKernels;
    since_ = kernels;
    losses_before_ = losses;
  }
  bool is_on(std::uint64_t kernels) const { return kernels < until_; }

 private:
  std::uint64_t until_ = 0;
  std::uint64_t losses_before_ = 0;
  std::uint64_t since_ = 0;
};

}  // namespace uvm::live
