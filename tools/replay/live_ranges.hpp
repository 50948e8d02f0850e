// The address ranges that an allocator has handed out: an independent model of what it may hand out
// next. No lock.
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

  // Adds a range, of at least one byte. Returns one that it overlaps, if any; then nothing is
  // added.
  std::optional<Range> add(std::uintptr_t begin, std::size_t size_bytes);

  // False: no range starts there.
  bool remove(std::uintptr_t begin) { return ranges_.erase(begin) != 0; }

  std::size_t size() const { return ranges_.size(); }

 private:
  std::map<std::uintptr_t, std::size_t> ranges_;  // disjoint; start to size
};

}  // namespace uvm::replay
