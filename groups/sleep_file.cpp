#include "groups/sleep_file.hpp"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#include <fmt/format.h>

#include "allocator/base/own_file.hpp"
#include "groups/policy.hpp"

namespace uvm {
namespace {

constexpr std::int64_t kNanoseconds = 1'000'000'000;  // in a second
constexpr long kHugetlbfsMagic = 0x958458f6;          // <linux/magic.h> of older kernels lacks it

bool is_in_memory(int file) {
  struct statfs system {};
  if (fstatfs(file, &system) != 0) return false;
  return system.f_type == TMPFS_MAGIC || system.f_type == RAMFS_MAGIC ||
         system.f_type == kHugetlbfsMagic;
}

std::string name_for_systems_without_unnamed_files() {
  return fmt::format("uvmalloc-sleep-{}", getpid());
}

// Repeats `transfer(done)`, which returns as write(2), until all bytes are done. Returns 0 or
// errno; `at_end` is the error if a call transfers nothing.
template <class Transfer>
int transfer_all(std::size_t size_bytes, int at_end, Transfer transfer) {
  for (std::size_t done = 0; done < size_bytes;) {
    const ssize_t bytes = transfer(done);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0) return errno;
    if (bytes == 0) return at_end;
    done += static_cast<std::size_t>(bytes);
  }
  return 0;
}

}  // namespace

std::uint64_t checksum_of(const char* page) {
  constexpr std::size_t kLanes = 8;  // independent sums, which the processor computes side by side
  constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15;
  std::array<std::uint64_t, kLanes> sums{1, 2, 3, 4, 5, 6, 7, 8};
  std::array<std::uint64_t, kLanes> words{};
  for (std::size_t at = 0; at < kPageBytes; at += sizeof words) {
    std::memcpy(words.data(), page + at, sizeof words);
    for (std::size_t lane = 0; lane < kLanes; ++lane)
      sums[lane] = std::rotl((sums[lane] ^ words[lane]) * kOdd, 31);
  }
  std::uint64_t sum = 0;
  for (const std::uint64_t each : sums) sum = std::rotl((sum ^ each) * kOdd, 31);
  return sum;
}

SleepFile::SleepFile(const std::string& folder)
    : name_(fmt::format("a file in \"{}\"", folder)),
      file_(OwnFile(folder + "/" + name_for_systems_without_unnamed_files()).create_unnamed()) {
  if (!file_.is_open()) {
    const int error = errno;
    throw FileError(
        fmt::format("no file can be made in \"{}\": {}; accepted: a folder on a disk "
                    "that this user may write to",
                    folder, own_file_error(error)));
  }
  if (is_in_memory(file_.get())) {
    throw FileError(fmt::format(
        "files in \"{}\" are in memory, so they free none; accepted: a folder on a disk", folder));
  }
  is_direct_ = fcntl(file_.get(), F_SETFL, O_DIRECT) == 0;
}

SleepFile::SleepFile(int descriptor, const std::string& path, std::int64_t changed_ns,
                     std::size_t begin, const PageSpan& pages)
    : name_(fmt::format("\"{}\"", path)),
      file_(open(fmt::format("/proc/self/fd/{}", descriptor).c_str(), O_RDONLY | O_CLOEXEC)),
      begin_(begin),
      changed_ns_(changed_ns) {
  if (!file_.is_open()) fail("opened", errno);
  if (!is_unchanged()) throw FileError(fmt::format("{} has changed since it was read", name_));
  is_direct_ = fcntl(file_.get(), F_SETFL, O_DIRECT) == 0;
  checksums_.reserve(pages.count);
  for (std::size_t i = 0; i < pages.count; ++i)
    checksums_.push_back(checksum_of(start_of_page(pages.first + i)));
}

bool SleepFile::is_unchanged() const {
  struct stat status {};
  return !changed_ns_ ||
         (fstat(file_.get(), &status) == 0 &&
          status.st_ctim.tv_sec * kNanoseconds + status.st_ctim.tv_nsec == *changed_ns_);
}

void SleepFile::fail(const char* what, int error) const {
  throw FileError(fmt::format("{} cannot be {}: {}", name_, what, std::strerror(error)));
}

void SleepFile::reserve(std::size_t pages) {
  const std::size_t size_bytes = pages * kPageBytes;
  // Beyond the limit the kernel would send a signal that ends the program.
  struct rlimit limit {};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && size_bytes > limit.rlim_cur) fail("written", EFBIG);
  // A file that does not fit would take all space until the system sees that.
  struct statvfs space {};
  if (fstatvfs(file_.get(), &space) == 0 && size_bytes / space.f_frsize > space.f_bavail)
    fail("written", ENOSPC);
  int error = 0;
  do {
    error = fallocate(file_.get(), 0, 0, static_cast<off_t>(size_bytes)) == 0 ? 0 : errno;
  } while (error == EINTR);
  // File systems that cannot reserve space fail when the bytes are written.
  if (error != 0 && error != EOPNOTSUPP) fail("written", error);
  checksums_.assign(pages, 0);
}

// Writes from a copy, so that the checksums are those of the bytes in the file even if a thread
// writes to the pages meanwhile.
void SleepFile::write(const PageSpan& pages, std::size_t slot) {
  const std::size_t most_bytes = std::min(policy::kFilePiecePages, pages.count) * kPageBytes;
  const std::unique_ptr<char, decltype(&std::free)> copy(
      static_cast<char*>(std::aligned_alloc(kPageBytes, most_bytes)), &std::free);
  if (copy == nullptr) throw std::bad_alloc();
  for (std::size_t done = 0; done < pages.count;) {
    const std::size_t count = std::min(policy::kFilePiecePages, pages.count - done);
    const char* const from = copy.get();
    std::memcpy(copy.get(), start_of_page(pages.first + done), count * kPageBytes);
    for (std::size_t i = 0; i < count; ++i)
      checksums_[slot + done + i] = checksum_of(from + i * kPageBytes);
    const std::size_t begin = (slot + done) * kPageBytes;
    const int error = transfer_all(count * kPageBytes, ENOSPC, [&](std::size_t at) {
      const ssize_t bytes =
          pwrite(file_.get(), from + at, count * kPageBytes - at, static_cast<off_t>(begin + at));
      if (bytes >= 0 || errno != EINVAL || !is_direct_) return bytes;
      // The file system takes the flag, but not such a write.
      is_direct_ = fcntl(file_.get(), F_SETFL, 0) != 0;
      errno = is_direct_ ? EINVAL : EINTR;
      return ssize_t{-1};
    });
    if (error != 0) fail("written", error);
    done += count;
  }
}

void SleepFile::finish() {
  if (fdatasync(file_.get()) != 0 && errno != EINVAL && errno != EROFS) fail("written", errno);
  (void)posix_fadvise(file_.get(), 0, 0, POSIX_FADV_DONTNEED);
}

void SleepFile::read_all(std::size_t offset, std::size_t size_bytes, char* out) const {
  constexpr int kShort = -1;  // the file is shorter than it was
  std::size_t done = 0;
  const int error = transfer_all(size_bytes, kShort, [&](std::size_t at) {
    done = at;
    const ssize_t bytes =
        pread(file_.get(), out + at, size_bytes - at, static_cast<off_t>(offset + at));
    if (bytes >= 0 || errno != EINVAL || !is_direct_) return bytes;
    is_direct_ = fcntl(file_.get(), F_SETFL, 0) != 0;
    errno = is_direct_ ? EINVAL : EINTR;
    return ssize_t{-1};
  });
  if (error == 0) return;
  throw FileError(fmt::format("{} cannot be read at offset {}: {}", name_, offset + done,
                              error == kShort ? "it is too short" : std::strerror(error)));
}

void SleepFile::read(std::size_t slot, std::size_t slots, char* out) const {
  for (std::size_t done = 0; done < slots;) {
    const std::size_t count = std::min(policy::kFilePiecePages, slots - done);
    char* const to = out + done * kPageBytes;
    read_all(begin_ + (slot + done) * kPageBytes, count * kPageBytes, to);
    for (std::size_t i = 0; i < count; ++i) {
      if (checksum_of(to + i * kPageBytes) == checksums_[slot + done + i]) continue;
      throw FileError(fmt::format("{} has changed at offset {}: its checksum is wrong", name_,
                                  begin_ + (slot + done + i) * kPageBytes));
    }
    done += count;
  }
}

void SleepFile::map(const PageSpan& pages, std::size_t slot) const {
  if (mmap(start_of_page(pages.first), pages.count * kPageBytes, PROT_READ | PROT_WRITE,
           MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, file_.get(),
           static_cast<off_t>(begin_ + slot * kPageBytes)) == MAP_FAILED)
    fail("mapped", errno);
}

}  // namespace uvm
