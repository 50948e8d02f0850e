// The pages of one group that are in files. Their addresses stay valid: the file is mapped over the
// pages. A read of such a page reads the file's bytes, and the page takes no host memory. Bytes
// that are written to such a page stay in memory, and the next put() writes them to a file.
//
// Each put() writes a new file, and no file is written again, because a forked child keeps a
// mapping of the file and must read the bytes as they were at the fork.
//
// Between the check of a page's bytes and its new mapping, and between the copy of what was written
// to it and its new memory, nothing may write to the page. Errors are FileError. Not thread-safe.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "groups/sleep_file.hpp"
#include "storage/pages.hpp"

namespace uvm {

class FilePages {
 public:
  bool empty() const { return pages_.empty() && kept_.empty(); }
  // Returns the pages in files, in the order of addresses.
  std::vector<PageSpan> pages() const { return pages_of(pages_); }

  // Writes those of the pages to a new file in `folder` that are not in a file with all their
  // bytes. Calls `make_ready` once there is room on the disk, before it reads the pages, and
  // `settle` before the last look at their bytes: both may throw. Returns the bytes of the pages
  // that were not in files. After an error no page has moved, unless the kernel has refused to map
  // some of them.
  std::size_t put(const std::vector<PageSpan>& pages, const std::string& folder,
                  const std::function<void()>& make_ready, const std::function<void()>& settle);
  // Makes those of the pages that are in files ordinary memory again, with all their bytes. The
  // file is kept for the next put(), which does not write pages that have the same bytes then.
  // After an error the pages that could not be read are in their file as before.
  void take_back(const std::vector<PageSpan>& pages);
  // Same as take_back(), but without the pages' bytes, and the file is not kept.
  void drop(const std::vector<PageSpan>& pages) noexcept;
  // Notes that `file` has the bytes of these pages, which are in memory, in its first slots. While
  // the bytes stay the same, put() maps the file and does not write them.
  void note_file(const PageSpan& pages, std::shared_ptr<SleepFile> file);
  // Forgets the pages. Those in files stay mapped to them.
  void forget(const std::vector<PageSpan>& pages) noexcept;

 private:
  struct Slot {
    std::shared_ptr<SleepFile> file;
    std::size_t number = 0;
  };
  using Slots = std::map<PageNumber, Slot>;
  static std::vector<PageSpan> pages_of(const Slots& slots);
  std::vector<PageSpan> changed(const std::vector<PageSpan>& pages) const;
  std::vector<PageSpan> unlike_kept(const std::vector<PageSpan>& pages) const;

  Slots pages_;
  Slots kept_;  // slots of pages in memory whose bytes were in a file
};

}  // namespace uvm
