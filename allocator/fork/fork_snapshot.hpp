// Copies live host blocks for a forked child, to the same addresses as in the parent (Note "Fork
// copies"). A child does not inherit the driver's mappings. So before a fork the bytes are written
// to an anonymous file, and the child maps the file privately at the same addresses.
//
// A written file is sealed, so the bytes that a child maps never change. Only children keep a file
// open, so the kernel deletes the file when the last child that maps it has ended. At the next fork
// the parent finds the earlier files among its children's descriptors, compares them with the live
// blocks, and writes only the differences. So children that are forked one after another share one
// copy. A file is used again only if at least half of it equals the live bytes.
//
// Used by one fork at a time (Forks). take(), give_up(), restore() and release() are called with
// the state lock, find_files() and say() without it. Only add(), take() and find_files() allocate.
// If take() or find_files() throws, earlier copies stay as they were.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include <uvmalloc/statistics.hpp>

namespace uvm {

class ForkSnapshot {
 public:
  struct Limits {
    std::optional<std::size_t> live_bytes;  // limit on all noted ranges: UVMALLOC_FORK_LIMIT
    std::size_t available_bytes = 0;        // limit on the bytes written, if live_bytes is not set
    bool can_be_ordinary = false;           // UVMALLOC_HOST_MEMORY=ordinary would work
  };

  // Notes a range for take(), widened to whole pages of the host.
  void add(void* address, std::size_t size_bytes);

  // Opens the files of the last fork that a child still has open. Called before take().
  void find_files();

  // Makes the child's copy of all noted ranges. If the ranges exceed a limit or cannot be copied,
  // copies none and prepares a log line about that. Prepares a line for the first large copy, too.
  void take(const Limits& limits, ForkStatistics* statistics);
  // Called if add() or take() has thrown. Makes no copy; prepares a log line about that.
  void give_up(ForkStatistics* statistics) noexcept;

  // Maps the copy. Called in the child.
  void restore() noexcept;

  // Closes the files, so that only children keep them open. Called in the parent.
  void release() noexcept;

  // Logs the line that take() or give_up() has prepared.
  void say() noexcept;

 private:
  struct Range {
    char* address = nullptr;
    std::size_t size_bytes = 0;
  };
  struct File {
    dev_t device = 0;
    ino_t number = 0;
    std::size_t size_bytes = 0;
    int descriptor = -1;          // open from take() to release()
    const char* bytes = nullptr;  // mapped while take() compares
  };
  // A range, and the position of its copy in a file.
  struct Piece {
    Range range;
    std::size_t file = 0;  // in files_
    std::size_t offset = 0;
  };

  struct Line {
    std::string once;  // key of log_once(); empty: the line is logged each time
    std::string text;
  };

  void forget() noexcept;
  std::vector<Range> merge_noted();
  void map_files();
  void unmap_files() noexcept;
  std::optional<Piece> find_copy(const Range& range) const;
  std::vector<Piece> reuse(const std::vector<Range>& live, std::vector<Range>* changed);
  bool write(const std::vector<Range>& changed, std::vector<Piece>* pieces);
  void keep(std::vector<Piece> pieces);

  std::vector<Range> noted_;
  // The pieces of the last fork, sorted by address, and the files that contain these pieces.
  std::vector<Piece> pieces_;
  std::vector<File> files_;
  std::optional<Line> line_;
  bool gave_up_ = false;
};

}  // namespace uvm
