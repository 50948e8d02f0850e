#include <uvmalloc/allocator/fork_snapshot.hpp>

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include <fmt/format.h>

#include <uvmalloc/allocator/configuration.hpp>
#include <uvmalloc/runtime/log.hpp>
#include <uvmalloc/storage/pages.hpp>

namespace uvm {
namespace {

bool write_all(int file, const char* from, std::size_t size_bytes, std::size_t offset) {
  while (size_bytes != 0) {
    // By its number: AddressSanitizer's pwrite refuses the bytes of free blocks, which the pages
    // around a live one hold too.
    long written = syscall(SYS_pwrite64, file, from, size_bytes, offset);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    from += written;
    offset += static_cast<std::size_t>(written);
    size_bytes -= static_cast<std::size_t>(written);
  }
  return true;
}

}  // namespace

void ForkSnapshot::add(void* address, std::size_t size_bytes) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  std::uintptr_t begin = address_of(address) & ~(page - 1);
  std::size_t size = round_up(address_of(address) + size_bytes, page) - begin;
  ranges_.push_back({reinterpret_cast<char*>(begin), size, total_bytes_});
  total_bytes_ += size;
}

void ForkSnapshot::take(std::size_t limit_bytes) {
  if (ranges_.empty()) return;
  if (total_bytes_ > limit_bytes) {
    log_once(
        LogLevel::kWarning, "fork limit",
        fmt::format(
            "fork: {} of live host tensors exceed UVMALLOC_FORK_LIMIT={}, so they are not copied "
            "and a forked child that touches them crashes; start workers with spawn or forkserver, "
            "or raise the limit",
            format_size(total_bytes_), format_size(limit_bytes)));
    clear();
    return;
  }
  file_ = memfd_create("uvmalloc-fork", MFD_CLOEXEC);
  bool copied = file_ >= 0 && ftruncate(file_, static_cast<off_t>(total_bytes_)) == 0;
  for (const Range& range : ranges_) {
    copied = copied && write_all(file_, range.address, range.size_bytes, range.offset);
  }
  if (copied) return;
  log_line(LogLevel::kWarning,
           fmt::format("fork: {} of live host tensors could not be copied for the child: {}",
                       format_size(total_bytes_), std::strerror(errno)));
  clear();
}

void ForkSnapshot::restore() {
  for (const Range& range : ranges_) {
    void* mapped = mmap(range.address, range.size_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_FIXED, file_, static_cast<off_t>(range.offset));
    if (mapped == MAP_FAILED) {
      log_line(LogLevel::kError, "fork: live host tensors are missing in the child: mmap failed");
      return;
    }
  }
}

void ForkSnapshot::clear() {
  if (file_ >= 0) close(file_);
  file_ = -1;
  ranges_.clear();
  total_bytes_ = 0;
}

}  // namespace uvm
