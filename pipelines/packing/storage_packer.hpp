// Finds offsets for buffers that share one piece of memory, with a height close to the live-range
// bound. StoragePlan uses this packer (TVM, "Symbolic shape runtime": memory planning gives each
// storage id its place). The packer stops when it reaches the bound, and tries in this order:
//  1. The first fit of a few fixed orders, which is enough for most programs.
//  2. CornerSearch at the bound itself, with more and more steps.
//  3. CornerSearch for heights between the bound and the best packing, if step 2 found none.
// The same problem, effort and seed give the same packing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>

#include "pipelines/packing/corner_search.hpp"
#include "pipelines/packing/pack_problem.hpp"

namespace uvm {

// How much the packer tries before it returns the best packing so far. The default takes half a
// second for a hard problem with a few hundred buffers, and hardly any time if a first fit reaches
// the bound.
struct PackEffort {
  std::size_t steps = 450'000'000;  // the most steps of all CornerSearches together
  std::uint32_t seed = 1;
  double good_enough = 1.0;  // the search ends at this ratio of height to bound
};

class StoragePacker {
 public:
  // The problem must outlive the packer.
  StoragePacker(const PackProblem& problem, const PackEffort& effort);
  Packing pack();

 private:
  bool is_good() const { return best_.height_bytes <= wanted_bytes_; }
  void keep(std::span<const std::int64_t> offsets);
  void try_fixed_orders();
  void search_heights();
  bool try_height(std::int64_t height_bytes, std::size_t search, std::size_t most_steps);

  const PackProblem& problem_;
  CornerSearch corners_;
  std::size_t steps_;  // steps that are left
  std::mt19937 random_;
  std::int64_t wanted_bytes_;
  Packing best_;
};

}  // namespace uvm
