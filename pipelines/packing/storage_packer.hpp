// Offsets for buffers that share one piece of memory, so that its height is close to the live-range
// bound: the packer behind StoragePlan (TVM, "Symbolic shape runtime": memory planning gives each
// storage id its place). It stops as soon as the bound is reached:
//  1. The first fit of a few fixed orders, which is enough for most programs.
//  2. SkylineSearch and CornerSearch in turn at the bound itself, with more and more steps.
//  3. Both for heights between the bound and the best packing, for problems that have no packing at
//     the bound, or none that is found.
// The same problem, effort and seed give the same packing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "pipelines/packing/corner_search.hpp"
#include "pipelines/packing/pack_problem.hpp"
#include "pipelines/packing/skyline_search.hpp"

namespace uvm {

// How much is tried before the best packing so far is taken. The default takes about half a second
// for a hard problem of some hundred buffers, and no time where a first fit reaches the bound.
struct PackEffort {
  std::size_t steps = 400'000'000;  // of CornerSearch and SkylineSearch together
  std::uint32_t seed = 1;
  double good_enough = 1.0;  // height over bound at which the search ends
};

class StoragePacker {
 public:
  // The problem must outlive the packer.
  StoragePacker(const PackProblem& problem, const PackEffort& effort);
  Packing pack();

 private:
  using Order = std::vector<std::uint32_t>;

  std::vector<Order> fixed_orders() const;
  bool is_good() const;
  void keep(const std::vector<std::int64_t>& offsets);
  void try_fixed_orders();
  void search_heights();
  bool try_height(std::int64_t height_bytes, int round, std::size_t most_steps);

  const PackProblem& problem_;
  SkylineSearch skylines_;
  CornerSearch corners_;
  PackEffort effort_;
  std::size_t steps_ = 0;  // that are left
  std::mt19937 random_;
  std::int64_t wanted_bytes_;
  Packing best_;
};

}  // namespace uvm
