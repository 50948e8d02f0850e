// Offsets for buffers that share one piece of memory, so that its height is close to the live-range
// bound: the packer behind StoragePlan (TVM, "Symbolic shape runtime": memory planning gives each
// storage id its place). Three searches, one after the other, until one reaches the bound:
//  1. the first fit of a few fixed orders;
//  2. SkylineSearch for heights that come closer and closer to the bound, as MiniMalloc searches;
//  3. a search over orders for FirstFit, which moves the buffers that lie too high to the front, as
//  TelaMalloc
//     backtracks to them (Maas et al., "TelaMalloc: Efficient On-Chip Memory Allocation for
//     Production Machine Learning Accelerators", ASPLOS 2022).
// The same problem, effort and seed give the same packing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include <uvmalloc/storage/pack_problem.hpp>
#include <uvmalloc/storage/skyline_search.hpp>

namespace uvm {

// How much is tried before the best packing so far is taken. The default takes about half a second
// for a hard problem of some hundred buffers, and no time where a first fit reaches the bound.
struct PackEffort {
  std::size_t nodes = 800'000;       // of SkylineSearch, in all
  std::size_t placements = 100'000;  // of single buffers by the search over orders
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
  void search_skylines();
  bool try_height(double ratio, double noise, std::size_t most_nodes);
  void search_orders();

  const PackProblem& problem_;
  SkylineSearch search_;
  PackEffort effort_;
  std::size_t nodes_ = 0;  // that are left
  std::mt19937 random_;
  std::int64_t wanted_bytes_;
  Packing best_;
};

}  // namespace uvm
