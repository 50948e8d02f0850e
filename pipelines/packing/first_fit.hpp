// The greedy packer: places buffers one by one, each at the lowest offset at which it overlaps no
// buffer placed before. Every packing that is pushed down is the first fit of some order.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "pipelines/packing/pack_problem.hpp"

namespace uvm {

// Returns the offsets. `order` has the number of each buffer once.
std::vector<std::int64_t> first_fit(const PackProblem& problem,
                                    std::span<const std::uint32_t> order);

}  // namespace uvm
