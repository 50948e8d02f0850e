#include "sim/engine/arena.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>

namespace uvmsim {
namespace {

constexpr std::size_t kSmallShare = 16;
// A smaller arena would have no room for large allocations.
constexpr std::size_t kLeastBytes = kSmallShare * kBlockBytes;
// If the address space is limited, the views of both arenas take about half of the space left.
constexpr std::size_t kShareOfLimit = 8;

std::size_t limit_of(decltype(RLIMIT_AS) resource) {
  rlimit limit{};
  if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
    return std::numeric_limits<std::size_t>::max();
  return limit.rlim_cur;
}

// Returns the bytes of address space that the process uses; 0 if unknown.
std::size_t used_address_space() {
  std::ifstream file("/proc/self/statm");
  std::size_t pages = 0;
  return file >> pages ? pages * kPageBytes : 0;
}

// Returns `bytes`, cut to the process's limits on file sizes (a memfd) and address space (views).
std::size_t allowed(std::size_t bytes) {
  bytes = std::min(bytes, limit_of(RLIMIT_FSIZE));
  const std::size_t address_space = limit_of(RLIMIT_AS);
  if (address_space != std::numeric_limits<std::size_t>::max()) {
    const std::size_t used = std::min(used_address_space(), address_space);
    bytes = std::min(bytes, (address_space - used) / kShareOfLimit);
  }
  return round_down(bytes, kBlockBytes);
}

void* as_pointer(std::uintptr_t address) {
  return reinterpret_cast<void*>(address);
}

std::uintptr_t reserve_aligned(std::size_t bytes) {
  void* raw = mmap(nullptr, bytes + kBlockBytes, PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) return 0;
  const auto begin = reinterpret_cast<std::uintptr_t>(raw);
  const std::uintptr_t base = round_up(begin, kBlockBytes);
  if (base > begin) munmap(raw, base - begin);
  const std::size_t tail = begin + kBlockBytes - base;
  if (tail > 0) munmap(as_pointer(base + bytes), tail);
  return base;
}

}  // namespace

Arena::Arena(const char* name, std::size_t bytes, HostAccess host_access)
    : host_access_(host_access), size_(bytes) {
  map_views(name);
  large_.begin = round_down(size_ / kSmallShare, kBlockBytes);
  small_.intervals = IntervalAllocator(large_.begin);
  large_.intervals = IntervalAllocator(size_ - large_.begin);
}

void Arena::map_views(const char* name) {
  const char* failed_step = "the limit of file sizes or address space";
  errno = 0;
  for (size_ = allowed(size_); size_ >= kLeastBytes; size_ = round_down(size_ / 2, kBlockBytes)) {
    failed_step = try_to_map(name);
    if (failed_step == nullptr) return;
  }
  const std::string reason = errno != 0 ? std::strerror(errno) : "too low";
  std::fprintf(stderr, "uvmsim: no address space for %s memory: %s: %s\n", name, failed_step,
               reason.c_str());
  size_ = 0;
}

// Returns null on success. Otherwise undoes the completed steps and returns the failed step.
const char* Arena::try_to_map(const char* name) {
  const char* failed_step = nullptr;
  const auto check = [&](bool done, const char* step) {
    if (!done && failed_step == nullptr) failed_step = step;
    return done;
  };
  const int shared = MAP_SHARED | MAP_FIXED | MAP_NORESERVE;
  const auto map = [&](std::uintptr_t base, int protection) {
    return mmap(as_pointer(base), size_, protection, shared, fd_, 0) != MAP_FAILED &&
           madvise(as_pointer(base), size_, MADV_DONTFORK) == 0 &&
           madvise(as_pointer(base), size_, MADV_DONTDUMP) == 0;
  };
  errno = 0;
  fd_ = memfd_create(name, MFD_CLOEXEC);
  if (check(fd_ >= 0, "memfd_create") &&
      check(ftruncate(fd_, static_cast<off_t>(size_)) == 0, "ftruncate") &&
      check((user_base_ = reserve_aligned(size_)) != 0, "mmap") &&
      check((device_base_ = reserve_aligned(size_)) != 0, "mmap") &&
      check(map(device_base_, PROT_READ | PROT_WRITE), "mmap of the memfd")) {
    // If the host cannot access the memory, the user view is only reserved.
    const bool mapped = host_access_ == HostAccess::kReadWrite
                            ? map(user_base_, PROT_NONE)
                            : madvise(as_pointer(user_base_), size_, MADV_DONTFORK) == 0;
    check(mapped, "mmap of the memfd");
  }
  if (failed_step == nullptr) return nullptr;
  const int error = errno;
  for (std::uintptr_t* base : {&user_base_, &device_base_}) {
    if (*base != 0) munmap(as_pointer(*base), size_);
    *base = 0;
  }
  abandon();
  errno = error;
  return failed_step;
}

std::uintptr_t Arena::allocate(std::size_t bytes) {
  if (bytes < kBlockBytes) {
    if (const std::uintptr_t address = allocate_in(small_, bytes)) return address;
  }
  return allocate_in(large_, bytes);
}

std::uintptr_t Arena::allocate_in(Part& part, std::size_t bytes) {
  const std::size_t length = round_up(bytes, part.unit);
  const auto offset = part.intervals.allocate(length);
  if (!offset) return 0;
  const std::uintptr_t address = user_base_ + part.begin + *offset;
  if (host_access_ == HostAccess::kReadWrite &&
      mprotect(as_pointer(address), length, PROT_READ | PROT_WRITE) != 0) {
    part.intervals.free(*offset, length);
    return 0;
  }
  return address;
}

void Arena::free(std::uintptr_t address, std::size_t bytes) {
  clear(address, bytes);
  reuse(address, bytes);
}

void Arena::reuse(std::uintptr_t address, std::size_t bytes) {
  const std::size_t offset = offset_of(address);
  Part& part = offset < large_.begin ? small_ : large_;
  part.intervals.free(offset - part.begin, round_up(bytes, part.unit));
}

void Arena::clear(std::uintptr_t address, std::size_t bytes) {
  const std::size_t offset = offset_of(address);
  const Part& part = offset < large_.begin ? small_ : large_;
  const std::size_t length = round_up(bytes, part.unit);
  if (host_access_ == HostAccess::kReadWrite) mprotect(as_pointer(address), length, PROT_NONE);
  // The next owner of the address must read zeros. If punching a hole fails, write them.
  if (fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                static_cast<off_t>(length)) != 0) {
    std::memset(device_view(address), 0, length);
  }
}

std::byte* Arena::device_view(std::uintptr_t address) const {
  return reinterpret_cast<std::byte*>(device_base_ + offset_of(address));
}

bool Arena::show(std::uintptr_t address, std::size_t bytes, int memfd, std::size_t offset) {
  void* view = device_view(address);
  if (mmap(view, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, memfd,
           static_cast<off_t>(offset)) == MAP_FAILED) {
    return false;
  }
  madvise(view, bytes, MADV_DONTFORK);
  madvise(view, bytes, MADV_DONTDUMP);
  return true;
}

bool Arena::meets(std::uintptr_t address, std::size_t bytes) const {
  for (const std::uintptr_t base : {user_base_, device_base_}) {
    if (address < base + size_ && base < address + bytes) return true;
  }
  return false;
}

void Arena::abandon() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

}  // namespace uvmsim
