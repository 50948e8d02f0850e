// The live address ranges of an allocator: an independent model that detects overlaps. Has no lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

namespace uvm::replay {

class LiveRanges {
 public:
  struct Range {
    std::uintptr_t begin = 0;
    std::size_t size_bytes = 0;
  };

  // Adds a range of at least one byte. If the range overlaps another, returns the other instead.
  std::optional<Range> add(std::uintptr_t begin, std::size_t size_bytes);

  // Removes the range that starts at `begin`. Returns false if there is none.
  bool remove(std::uintptr_t begin) { return ranges_.erase(begin) != 0; }

  std::size_t size() const { return ranges_.size(); }

 private:
  std::map<std::uintptr_t, std::size_t> ranges_;  // start and size; disjoint
};

}  // namespace uvm::replay
