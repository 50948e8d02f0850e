// Host blocks that a forked child is to find where its parent has them. The driver's mappings are
// not inherited, so before the fork the bytes are written to an anonymous file, and the child maps
// it privately at the same addresses. Used between before_fork() and after_fork_in_*(), under the
// allocator's lock; restore() allocates nothing.
#pragma once

#include <cstddef>
#include <vector>

namespace uvm {

class ForkSnapshot {
 public:
  // Notes a range; it is widened to the host's pages.
  void add(void* address, std::size_t size_bytes);

  // Copies all noted ranges, or, where they exceed `limit_bytes` or cannot be copied, none, and
  // says so in one line.
  void take(std::size_t limit_bytes);

  // In the child: maps the copies.
  void restore();

  // Forgets everything and closes the file.
  void clear();

 private:
  struct Range {
    char* address = nullptr;
    std::size_t size_bytes = 0;
    std::size_t offset = 0;  // in the file
  };
  std::vector<Range> ranges_;
  std::size_t total_bytes_ = 0;
  int file_ = -1;
};

}  // namespace uvm
