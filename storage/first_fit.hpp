// Places buffers one by one, each at the lowest offset at which it overlaps none that was placed
// before. Every packing that is pushed down is the first fit of some order, so a search over orders
// can find the best packing.
//
// The first fit of an order that differs from the last one only from a place on is found from that
// place on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <uvmalloc/storage/pack_problem.hpp>

namespace uvm {

class FirstFit {
 public:
  // The problem must outlive this.
  explicit FirstFit(const PackProblem& problem);

  // Places order[begin] and all after it; those before are as in the last call. Returns the height.
  // Stops early, with a height above `most_bytes`, as soon as that is certain.
  std::int64_t place(const std::vector<std::uint32_t>& order, std::size_t begin,
                     std::int64_t most_bytes);

  const std::vector<std::int64_t>& offsets() const { return offsets_; }

 private:
  std::int64_t lowest_offset(std::uint32_t buffer);

  const PackProblem& problem_;
  std::vector<std::int64_t> offsets_;
  std::vector<std::size_t> position_;  // in the order; beyond the end: not placed
  std::vector<std::int64_t> heights_;  // by position: of all before it
  std::vector<std::pair<std::int64_t, std::int64_t>> taken_;
};

}  // namespace uvm
