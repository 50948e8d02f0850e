// The greedy packer: places buffers one by one, each at the lowest offset where it overlaps no
// buffer placed before. A packing in which no buffer can move down is the first fit of some order.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "pipelines/packing/pack_problem.hpp"

namespace uvm {

// Returns the offsets of all buffers. `order` contains the number of each buffer once.
std::vector<std::int64_t> first_fit(const PackProblem& problem,
                                    std::span<const std::uint32_t> order);

}  // namespace uvm
