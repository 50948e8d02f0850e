#include "allocator/fork/fork_snapshot.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>

#include <fmt/format.h>

#include <uvmalloc/configuration.hpp>
#include "allocator/policy/allocation_policy.hpp"
#include "runtime/log.hpp"
#include "storage/pages.hpp"

namespace uvm {
namespace {

const char* way_out(const ForkSnapshot::Limits& limits) {
  return limits.can_be_ordinary
             ? "start workers with spawn or forkserver, make what they read under "
               "uvmalloc.region(managed=False), or set UVMALLOC_HOST_MEMORY=ordinary"
             : "start workers with spawn or forkserver, or make what they read under "
               "uvmalloc.region(managed=False)";
}

bool write_all(int file, const char* from, std::size_t size_bytes, std::size_t offset) {
  while (size_bytes != 0) {
    // A raw system call, because AddressSanitizer's pwrite() reports the bytes of free blocks,
    // which share pages with live blocks.
    long written = syscall(SYS_pwrite64, file, from, size_bytes, offset);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    from += written;
    offset += static_cast<std::size_t>(written);
    size_bytes -= static_cast<std::size_t>(written);
  }
  return true;
}

// Compares whole pages without sanitizers. AddressSanitizer, which also checks memcmp(), would
// report the bytes of free blocks, and ThreadSanitizer would report other threads' writes to live
// blocks.
__attribute__((no_sanitize("address", "thread"))) bool same_bytes(const char* a, const char* b,
                                                                  std::size_t size_bytes) {
  using Word [[gnu::may_alias]] = std::uint64_t;
  constexpr std::size_t kStep = 64;  // words between two checks for a difference
  const auto* left = reinterpret_cast<const Word*>(a);
  const auto* right = reinterpret_cast<const Word*>(b);
  for (std::size_t word = 0; word < size_bytes / sizeof(Word); word += kStep) {
    std::uint64_t difference = 0;
    for (std::size_t i = word; i < word + kStep; ++i) difference |= left[i] ^ right[i];
    if (difference != 0) return false;
  }
  return true;
}

// Returns the ids of the child processes that have not ended.
std::vector<std::string> children() {
  std::vector<std::string> out;
  std::error_code error;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task", error)) {
    std::ifstream file(thread.path() / "children");
    out.insert(out.end(), std::istream_iterator<std::string>(file), {});
  }
  return out;
}

}  // namespace

void ForkSnapshot::add(void* address, std::size_t size_bytes) {
  const std::size_t page = host_page_bytes();
  std::uintptr_t begin = address_of(address) & ~(page - 1);
  std::size_t size = round_up(address_of(address) + size_bytes, page) - begin;
  noted_.push_back({reinterpret_cast<char*>(begin), size});
}

// Returns the noted ranges, sorted by address, without overlaps, and cut at 2 MiB boundaries. Each
// part is compared and copied as a whole.
std::vector<ForkSnapshot::Range> ForkSnapshot::merge_noted() {
  std::sort(noted_.begin(), noted_.end(),
            [](const Range& a, const Range& b) { return a.address < b.address; });
  std::vector<Range> out;
  char* covered = nullptr;
  for (const Range& range : noted_) {
    char* const end = range.address + range.size_bytes;
    for (char* begin = std::max(range.address, covered); begin < end;) {
      char* const next = reinterpret_cast<char*>(round_up(address_of(begin) + 1, kPageBytes));
      out.push_back({begin, static_cast<std::size_t>(std::min(next, end) - begin)});
      begin = std::min(next, end);
    }
    covered = std::max(covered, end);
  }
  noted_.clear();
  return out;
}

void ForkSnapshot::give_up(ForkStatistics* statistics) noexcept {
  noted_.clear();
  line_.reset();
  forget();
  ++statistics->without_copy;
  gave_up_ = true;
}

void ForkSnapshot::say() noexcept {
  if (std::exchange(gave_up_, false)) {
    log_line(LogLevel::kWarning,
             "fork: live host memory could not be copied for the child, because there was no "
             "memory for the list of its ranges");
  }
  const std::optional<Line> line = std::exchange(line_, std::nullopt);
  if (!line) return;
  if (line->once.empty()) {
    log_line(LogLevel::kWarning, line->text);
  } else {
    log_once(LogLevel::kWarning, line->once, line->text);
  }
}

void ForkSnapshot::take(const Limits& limits, ForkStatistics* statistics) {
  if (noted_.empty()) return forget();
  ++statistics->forks;
  const auto started = std::chrono::steady_clock::now();
  const std::vector<Range> live = merge_noted();
  std::size_t live_bytes = 0;
  for (const Range& range : live) live_bytes += range.size_bytes;
  if (limits.live_bytes && live_bytes > *limits.live_bytes) {
    line_ = {
        "fork limit",
        fmt::format("fork: {} of live host memory exceeds UVMALLOC_FORK_LIMIT={}, so it is "
                    "not copied and a forked child that touches it crashes; {}, or raise "
                    "the limit",
                    format_size(live_bytes), format_size(*limits.live_bytes), way_out(limits))};
    ++statistics->without_copy;
    return forget();
  }
  std::vector<Range> changed;
  std::vector<Piece> pieces = reuse(live, &changed);
  std::size_t changed_bytes = 0;
  for (const Range& range : changed) changed_bytes += range.size_bytes;
  if (!limits.live_bytes && changed_bytes > limits.available_bytes) {
    line_ = {"fork memory",
             fmt::format("fork: a copy of {} of live host memory does not fit into the {} that "
                         "the host has available, so a forked child that touches it crashes; {}",
                         format_size(changed_bytes), format_size(limits.available_bytes),
                         way_out(limits))};
    ++statistics->without_copy;
    return forget();
  }
  if (!write(changed, &pieces)) {
    line_ = {"", fmt::format("fork: {} of live host memory could not be copied for the child: {}",
                             format_size(changed_bytes), std::strerror(errno))};
    ++statistics->without_copy;
    return forget();
  }
  keep(std::move(pieces));
  const auto taken = std::chrono::steady_clock::now() - started;
  statistics->copied_bytes += changed_bytes;
  statistics->shared_bytes += live_bytes - changed_bytes;
  statistics->time += taken;
  if (changed_bytes < policy::kReportedCopyBytes) return;
  line_ = {"fork copy",
           fmt::format("fork: {} of live host memory was copied for the child in {:.2f} s; "
                       "children share the copy until the last of them ends, and each further fork "
                       "compares it with the memory; to avoid that, {}",
                       format_size(changed_bytes), std::chrono::duration<double>(taken).count(),
                       way_out(limits))};
}

// Files are sealed, so a file that a child has open still contains what was written to it.
void ForkSnapshot::find_files() {
  if (files_.empty()) return;
  std::error_code error;
  auto is_open = [](const File& file) { return file.descriptor >= 0; };
  for (const std::string& child : children()) {
    if (std::all_of(files_.begin(), files_.end(), is_open)) return;
    const std::filesystem::path folder = "/proc/" + child + "/fd";
    for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
      struct stat found {};
      // Compare the inode number first, because opening an unrelated file can have side effects.
      if (stat(entry.path().c_str(), &found) != 0) continue;
      for (File& file : files_) {
        if (file.descriptor >= 0 || file.device != found.st_dev || file.number != found.st_ino) {
          continue;
        }
        file.descriptor = open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
        const int seals = file.descriptor < 0 ? -1 : fcntl(file.descriptor, F_GET_SEALS);
        if (seals >= 0 && (seals & F_SEAL_WRITE) != 0) continue;
        if (file.descriptor >= 0) close(file.descriptor);
        file.descriptor = -1;
      }
    }
  }
}

void ForkSnapshot::map_files() {
  for (File& file : files_) {
    if (file.descriptor < 0) continue;
    void* mapped =
        mmap(nullptr, file.size_bytes, PROT_READ, MAP_PRIVATE | MAP_POPULATE, file.descriptor, 0);
    if (mapped != MAP_FAILED) file.bytes = static_cast<const char*>(mapped);
  }
}

void ForkSnapshot::unmap_files() noexcept {
  for (File& file : files_) {
    if (file.bytes != nullptr) munmap(const_cast<char*>(file.bytes), file.size_bytes);
    file.bytes = nullptr;
  }
}

// Returns the earlier copy of the whole range in a mapped file, or nullopt if no file contains such
// a copy.
std::optional<ForkSnapshot::Piece> ForkSnapshot::find_copy(const Range& range) const {
  auto after = std::upper_bound(
      pieces_.begin(), pieces_.end(), range.address,
      [](const char* address, const Piece& piece) { return address < piece.range.address; });
  if (after == pieces_.begin()) return std::nullopt;
  const Piece& piece = *std::prev(after);
  const auto skipped = static_cast<std::size_t>(range.address - piece.range.address);
  if (skipped + range.size_bytes > piece.range.size_bytes) return std::nullopt;
  if (files_[piece.file].bytes == nullptr) return std::nullopt;
  return Piece{range, piece.file, piece.offset + skipped};
}

// Returns the pieces of earlier copies that equal the live bytes. The other ranges go to `changed`.
std::vector<ForkSnapshot::Piece> ForkSnapshot::reuse(const std::vector<Range>& live,
                                                     std::vector<Range>* changed) {
  map_files();
  std::vector<Piece> same;
  std::vector<std::size_t> same_bytes_of(files_.size());
  for (const Range& range : live) {
    std::optional<Piece> copy = find_copy(range);
    if (copy &&
        same_bytes(range.address, files_[copy->file].bytes + copy->offset, range.size_bytes)) {
      same_bytes_of[copy->file] += range.size_bytes;
      same.push_back(*copy);
    } else {
      changed->push_back(range);
    }
  }
  unmap_files();
  // A child that maps part of a file keeps the whole file in memory. So files of which few bytes
  // are used are not used again.
  std::vector<Piece> kept;
  for (const Piece& piece : same) {
    if (same_bytes_of[piece.file] >= files_[piece.file].size_bytes / policy::kReusedFileParts) {
      kept.push_back(piece);
    } else {
      changed->push_back(piece.range);
    }
  }
  return kept;
}

// Writes the ranges to a new file, and seals the file if possible. On failure returns false and
// sets errno.
bool ForkSnapshot::write(const std::vector<Range>& changed, std::vector<Piece>* pieces) {
  if (changed.empty()) return true;
  File file;
  for (const Range& range : changed) file.size_bytes += range.size_bytes;
  files_.reserve(files_.size() + 1);
  file.descriptor = memfd_create("uvmalloc-fork", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (file.descriptor < 0) return false;
  files_.push_back(file);
  if (ftruncate(file.descriptor, static_cast<off_t>(file.size_bytes)) != 0) return false;
  std::size_t offset = 0;
  for (const Range& range : changed) {
    if (!write_all(file.descriptor, range.address, range.size_bytes, offset)) return false;
    pieces->push_back({range, files_.size() - 1, offset});
    offset += range.size_bytes;
  }
  // The kernel refuses with EBUSY while it holds a page of the file, for example to move the page.
  // A file without seals serves this child, and find_files() does not find it for later ones.
  const int sealed =
      fcntl(file.descriptor, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW);
  struct stat made {};
  if ((sealed != 0 && errno != EBUSY) || fstat(file.descriptor, &made) != 0) return false;
  files_.back().device = made.st_dev;
  files_.back().number = made.st_ino;
  return true;
}

// Joins neighbouring pieces, so that a child maps few ranges, and closes the files without a piece.
void ForkSnapshot::keep(std::vector<Piece> pieces) {
  std::sort(pieces.begin(), pieces.end(),
            [](const Piece& a, const Piece& b) { return a.range.address < b.range.address; });
  pieces_.clear();
  std::vector<bool> in_use(files_.size());
  for (const Piece& piece : pieces) {
    in_use[piece.file] = true;
    if (!pieces_.empty()) {
      Piece& last = pieces_.back();
      if (last.file == piece.file && last.offset + last.range.size_bytes == piece.offset &&
          last.range.address + last.range.size_bytes == piece.range.address) {
        last.range.size_bytes += piece.range.size_bytes;
        continue;
      }
    }
    pieces_.push_back(piece);
  }
  for (std::size_t i = 0; i < files_.size(); ++i) {
    if (in_use[i] || files_[i].descriptor < 0) continue;
    close(files_[i].descriptor);
    files_[i].descriptor = -1;
  }
}

void ForkSnapshot::restore() noexcept {
  for (const Piece& piece : pieces_) {
    void* mapped = mmap(piece.range.address, piece.range.size_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_FIXED, files_[piece.file].descriptor,
                        static_cast<off_t>(piece.offset));
    if (mapped == MAP_FAILED) {
      log_line(LogLevel::kError, "fork: live host memory is missing in the child: mmap failed");
      return;
    }
  }
}

void ForkSnapshot::release() noexcept {
  // keep() has closed the files that no piece uses. Remove these files, and renumber the others.
  std::size_t kept = 0;
  for (std::size_t i = 0; i < files_.size(); ++i) {
    if (files_[i].descriptor < 0) continue;
    close(std::exchange(files_[i].descriptor, -1));
    for (Piece& piece : pieces_) {
      if (piece.file == i) piece.file = kept;
    }
    files_[kept++] = files_[i];
  }
  files_.resize(kept);
}

void ForkSnapshot::forget() noexcept {
  unmap_files();
  release();
  pieces_.clear();
  files_.clear();
}

}  // namespace uvm
