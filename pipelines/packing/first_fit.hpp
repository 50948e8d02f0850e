// Places buffers one by one, each at the lowest offset at which it overlaps none that was placed
// before. Every packing that is pushed down is the first fit of some order, so a search over orders
// can find the best packing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "pipelines/packing/pack_problem.hpp"

namespace uvm {

class FirstFit {
 public:
  // The problem must outlive this.
  explicit FirstFit(const PackProblem& problem);

  // Returns the height.
  std::int64_t place(const std::vector<std::uint32_t>& order);

  const std::vector<std::int64_t>& offsets() const { return offsets_; }

 private:
  std::int64_t lowest_offset(std::uint32_t buffer);

  const PackProblem& problem_;
  std::vector<std::int64_t> offsets_;
  std::vector<char> placed_;
  std::vector<std::pair<std::int64_t, std::int64_t>> taken_;
};

}  // namespace uvm
