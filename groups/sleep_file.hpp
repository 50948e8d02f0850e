// A file that holds the bytes of pages while a group sleeps, with a checksum for each page. Either
// it is made for this, written once, and has no name: nobody else opens it, and it ends with its
// last descriptor and mapping, also if the process is killed. Or it is a file of the program, from
// which the bytes were read; it is not written to.
//
// Errors are FileError. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "allocator/base/descriptor.hpp"
#include "storage/pages.hpp"

namespace uvm {

// Says what failed, in which folder, and why.
class FileError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Returns a checksum of the page. It is equal for different bytes in one of 2^64 cases.
std::uint64_t checksum_of(const char* page);

class SleepFile {
 public:
  // Makes an empty file. Throws if the folder does not exist or cannot be written to, and if its
  // files are in memory (tmpfs).
  explicit SleepFile(const std::string& folder);
  // Opens the program's file again that it has open as `descriptor`. From `begin` on, the file has
  // the bytes of the pages, as they are in memory now, unless it was written to after
  // `changed_ns`, the time of its last change as stat(2) reports it; then throws.
  SleepFile(int descriptor, const std::string& path, std::int64_t changed_ns, std::size_t begin,
            const PageSpan& pages);

  // Returns false if the file is the program's, and has been written to.
  bool is_unchanged() const;
  // Reserves space for this many pages on the disk. Throws if there is not enough.
  void reserve(std::size_t pages);
  // Writes the pages to the slots from `slot` on; each slot has room for one page.
  void write(const PageSpan& pages, std::size_t slot);
  // Returns whether the bytes in memory are those that were written.
  bool holds(PageNumber page, std::size_t slot) const {
    return checksums_[slot] == checksum_of(start_of_page(page));
  }
  // Waits until the bytes are on the disk, and drops the kernel's copies of them.
  void finish();
  // Reads slots to memory. Throws if they cannot be read or are not as they were written.
  void read(std::size_t slot, std::size_t slots, char* out) const;
  // Maps slots over pages. Both the host and devices then read the file's bytes there; what they
  // write stays in memory. Throws, and maps nothing, if the kernel refuses.
  void map(const PageSpan& pages, std::size_t slot) const;

 private:
  [[noreturn]] void fail(const char* what, int error) const;
  void read_all(std::size_t offset, std::size_t size_bytes, char* out) const;

  std::string name_;  // in messages
  Descriptor file_;
  std::size_t begin_ = 0;                   // of slot 0, in the file
  std::optional<std::int64_t> changed_ns_;  // of the program's file
  mutable bool is_direct_ = false;          // reads and writes pass the kernel's cache by
  std::vector<std::uint64_t> checksums_;    // by slot
};

}  // namespace uvm
