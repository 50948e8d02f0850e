// The live address ranges of an allocator: an independent model that detects overlaps. No lock.
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

  // Adds a range of at least one byte. If it overlaps another, returns that one and adds nothing.
  std::optional<Range> add(std::uintptr_t begin, std::size_t size_bytes);

  // Returns false if no range starts there.
  bool remove(std::uintptr_t begin) { return ranges_.erase(begin) != 0; }

  std::size_t size() const { return ranges_.size(); }

 private:
  std::map<std::uintptr_t, std::size_t> ranges_;  // disjoint; start to size
};

}  // namespace uvm::replay
