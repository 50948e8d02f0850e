// Looks for a packing of at most a given height by a depth-first search in the order of offsets, as
// MiniMalloc does (Moffitt, "MiniMalloc: A Lightweight Memory Allocator for Hardware-Accelerated
// Machine Learning", ASPLOS 2023). Every packing can be pushed down until each buffer lies on the
// floor or on another one. Such a packing is found by placing buffers in ascending order of their
// offsets, each at the lowest offset that is free above it. Branches are cut in three ways:
//  * In each section, the lowest offset that a buffer can still get, plus the sizes of those not
//  placed, must fit.
//  * A buffer is not placed at an offset at or above which another one would already have ended.
//  * Buffers that no time connects any more are searched apart.
//
// Deterministic: the number of visited nodes is the limit, not the time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <uvmalloc/storage/pack_problem.hpp>

namespace uvm {

class SkylineSearch {
 public:
  // The problem must outlive the search.
  explicit SkylineSearch(const PackProblem& problem);

  // Offsets of at most `height_bytes`. `ranks` decides which of two buffers is tried first at one
  // offset: the lower rank. nullopt if there is no such packing, or it was not found within
  // `most_nodes`.
  std::optional<std::vector<std::int64_t>> fit(std::int64_t height_bytes,
                                               const std::vector<std::uint32_t>& ranks,
                                               std::size_t most_nodes);

  // Whether the last fit() returned nullopt although it had visited all nodes: then there is no
  // such packing.
  bool is_exhausted() const { return nodes_ <= most_nodes_; }

 private:
  using Numbers = std::vector<std::uint32_t>;
  struct Change {
    std::uint32_t buffer;
    std::int64_t least_offset;  // before it
  };

  // The buffer that was placed last.
  struct Last {
    std::int64_t offset = 0;
    std::uint32_t rank = 0;
  };

  bool place_all(const Numbers& open, Last last);
  bool place_group(const Numbers& open, Last last);
  void place(std::uint32_t buffer);
  void take_back(std::uint32_t buffer, std::size_t changes);
  bool may_fit(const Numbers& open, std::int64_t last_offset) const;

  const PackProblem& problem_;
  const std::vector<std::uint32_t>* ranks_ = nullptr;
  std::int64_t height_bytes_ = 0;
  std::size_t most_nodes_ = 0;
  std::size_t nodes_ = 0;
  std::vector<std::int64_t> least_offset_;  // by what is placed so far; a placed buffer's own
  std::vector<bool> placed_;
  std::vector<std::int64_t> open_bytes_;  // by section: sizes of those not placed
  std::vector<Change> changes_;
};

}  // namespace uvm
