#include "groups/file_pages.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "allocator/base/descriptor.hpp"
#include "allocator/spans/host_backing.hpp"
#include "groups/page_spans.hpp"
#include "groups/policy.hpp"

namespace uvm {
namespace {

constexpr const char* kIsChanging = "the memory is being written to, so its bytes cannot be saved";

// Finds the pages of a private mapping of a file that the process has written to. The
// kernel describes each page by a word (Documentation/admin-guide/mm/pagemap.rst).
class WrittenPages {
 public:
  // Returns whether each host page of `page` was written to; nullopt if the kernel does not say.
  std::optional<std::vector<bool>> in(PageNumber page) const {
    constexpr std::uint64_t kPresent = std::uint64_t{1} << 63;
    constexpr std::uint64_t kSwapped = std::uint64_t{1} << 62;  // or on a device
    constexpr std::uint64_t kOfFile = std::uint64_t{1} << 61;
    std::vector<std::uint64_t> words(kPageBytes / host_page_bytes());
    const std::size_t bytes = words.size() * sizeof(std::uint64_t);
    const auto offset = address_of(page) / host_page_bytes() * sizeof(std::uint64_t);
    if (!table_.is_open() || pread(table_.get(), words.data(), bytes, static_cast<off_t>(offset)) !=
                                 static_cast<ssize_t>(bytes))
      return std::nullopt;
    std::vector<bool> written(words.size());
    std::transform(words.begin(), words.end(), written.begin(), [](std::uint64_t word) {
      return (word & (kPresent | kSwapped)) != 0 && (word & kOfFile) == 0;
    });
    return written;
  }

 private:
  Descriptor table_{open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC)};
};

// Copies the bytes that were written to the pages since the file was mapped over them to `bytes`,
// which hold the file's bytes.
void copy_written(const PageSpan& pages, char* bytes) {
  const WrittenPages table;
  const std::size_t step = host_page_bytes();
  for (std::size_t i = 0; i < pages.count; ++i) {
    const auto written = table.in(pages.first + i);
    const char* const from = start_of_page(pages.first + i);
    char* const to = bytes + i * kPageBytes;
    for (std::size_t at = 0; at < kPageBytes; at += step) {
      const bool differs =
          written ? bool{(*written)[at / step]} : std::memcmp(from + at, to + at, step) != 0;
      if (differs) std::memcpy(to + at, from + at, step);
    }
  }
}

// Calls `visit(run, slot)` for runs of those pages that are in neighbouring slots of one file.
template <class Slots, class Visit>
void each_run_in(const Slots& slots, const std::vector<PageSpan>& pages, Visit visit) {
  for (const PageSpan& each : pages) {
    auto at = slots.lower_bound(each.first);
    while (at != slots.end() && at->first < each.end()) {
      const auto slot = at->second;
      PageSpan run{at->first, 0};
      while (at != slots.end() && at->first < each.end() && at->first == run.end() &&
             at->second.file == slot.file && at->second.number == slot.number + run.count &&
             run.count < policy::kMostPagesAtOnce) {
        ++run.count;
        ++at;
      }
      visit(run, slot);
    }
  }
}

struct Unmapped {
  std::size_t size_bytes;
  void operator()(char* memory) const { unmap_ordinary(memory, size_bytes); }
};

}  // namespace

std::vector<PageSpan> FilePages::pages_of(const Slots& slots) {
  std::vector<PageSpan> spans;
  for (const auto& [page, slot] : slots) append(&spans, {page, 1});
  return spans;
}

std::vector<PageSpan> FilePages::changed(const std::vector<PageSpan>& pages) const {
  const WrittenPages table;
  std::vector<PageSpan> unchanged;
  for (const PageSpan& each : pages) {
    for (auto at = pages_.lower_bound(each.first); at != pages_.end() && at->first < each.end();
         ++at) {
      const auto written = table.in(at->first);
      if (written && std::ranges::find(*written, true) == written->end())
        append(&unchanged, {at->first, 1});
    }
  }
  return pages_without(pages, unchanged);
}

// The pages whose bytes in memory are not those of a kept file.
std::vector<PageSpan> FilePages::unlike_kept(const std::vector<PageSpan>& pages) const {
  std::vector<PageSpan> like;
  each_run_in(kept_, pages, [&](const PageSpan& run, const Slot& slot) {
    if (!slot.file->is_unchanged()) return;
    for (std::size_t i = 0; i < run.count; ++i) {
      if (slot.file->holds(run.first + i, slot.number + i)) append(&like, {run.first + i, 1});
    }
  });
  return pages_without(pages, like);
}

std::size_t FilePages::put(const std::vector<PageSpan>& pages, const std::string& folder,
                           const std::function<void()>& make_ready,
                           const std::function<void()>& settle) {
  if (bytes_of(pages) == 0) return 0;
  std::shared_ptr<SleepFile> file;
  const auto reserve = [&](const std::vector<PageSpan>& for_pages) {
    const std::size_t count = bytes_of(for_pages) / kPageBytes;
    if (count == 0) return;
    if (file == nullptr) file = std::make_shared<SleepFile>(folder);
    file->reserve(count);
  };
  reserve(pages_without(changed(pages), pages_of(kept_)));
  make_ready();
  // Kernels may have written to more pages meanwhile.
  const std::vector<PageSpan> coming = changed(pages);
  const std::vector<PageSpan> writing = unlike_kept(coming);
  const std::vector<PageSpan> like = pages_without(coming, writing);
  reserve(writing);
  Slots slots;
  for (const PageSpan& each : writing) {
    file->write(each, slots.size());
    for (std::size_t i = 0; i < each.count; ++i)
      slots.try_emplace(each.first + i, Slot{file, slots.size()});
  }
  settle();
  for (std::size_t round = 0, found = 1; found != 0; ++round) {
    found = 0;
    for (const auto& [page, slot] : slots) {
      if (file->holds(page, slot.number)) continue;
      file->write({page, 1}, slot.number);
      ++found;
    }
    if (found != 0 && round == policy::kMostRewrites) throw FileError(kIsChanging);
  }
  if (bytes_of(unlike_kept(like)) != 0) throw FileError(kIsChanging);
  if (file != nullptr) file->finish();
  each_run_in(kept_, like, [&](const PageSpan& run, const Slot& slot) {
    for (std::size_t i = 0; i < run.count; ++i)
      slots.try_emplace(run.first + i, Slot{slot.file, slot.number + i});
  });
  std::vector<std::pair<PageSpan, Slot>> runs;
  each_run_in(slots, coming,
              [&](const PageSpan& run, const Slot& slot) { runs.emplace_back(run, slot); });
  for (const auto& [run, slot] : runs) {
    slot.file->map(run, slot.number);
    forget({run});
    for (std::size_t i = 0; i < run.count; ++i) pages_.insert(slots.extract(run.first + i));
  }
  return bytes_of(coming);
}

void FilePages::take_back(const std::vector<PageSpan>& pages) {
  std::vector<std::pair<PageSpan, Slot>> runs;
  each_run_in(pages_, pages,
              [&](const PageSpan& run, const Slot& slot) { runs.emplace_back(run, slot); });
  for (const auto& [run, slot] : runs) {
    const std::size_t size_bytes = run.count * kPageBytes;
    std::unique_ptr<char, Unmapped> memory(static_cast<char*>(map_ordinary(size_bytes)),
                                           Unmapped{size_bytes});
    if (memory == nullptr)
      throw FileError(fmt::format("there is no memory for {} bytes of a file", size_bytes));
    slot.file->read(slot.number, run.count, memory.get());
    copy_written(run, memory.get());
    // Moves the memory, with its pages, to where the file is mapped.
    if (mremap(memory.get(), size_bytes, size_bytes, MREMAP_MAYMOVE | MREMAP_FIXED,
               start_of_page(run.first)) == MAP_FAILED) {
      throw FileError(
          fmt::format("pages of a file cannot become memory again: {}", std::strerror(errno)));
    }
    (void)memory.release();  // its address is free
    for (std::size_t i = 0; i < run.count; ++i) kept_.insert(pages_.extract(run.first + i));
  }
}

void FilePages::drop(const std::vector<PageSpan>& pages) noexcept {
  for (const PageSpan& each : pages) {
    for (auto at = pages_.lower_bound(each.first); at != pages_.end() && at->first < each.end();) {
      PageSpan run{at->first, 0};
      while (at != pages_.end() && at->first < each.end() && at->first == run.end()) {
        ++run.count;
        at = pages_.erase(at);
      }
      // If the kernel refuses, the pages stay mapped to their file, which can be used as well.
      (void)renew_ordinary(start_of_page(run.first), run.count * kPageBytes);
    }
  }
  forget(pages);
}

void FilePages::note_file(const PageSpan& pages, std::shared_ptr<SleepFile> file) {
  forget({pages});
  for (std::size_t i = 0; i < pages.count; ++i) kept_.try_emplace(pages.first + i, Slot{file, i});
}

void FilePages::forget(const std::vector<PageSpan>& pages) noexcept {
  for (const PageSpan& each : pages) {
    for (Slots* slots : {&pages_, &kept_})
      slots->erase(slots->lower_bound(each.first), slots->lower_bound(each.end()));
  }
}

}  // namespace uvm
