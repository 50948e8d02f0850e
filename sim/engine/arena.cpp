#include <uvmalloc/sim/engine/arena.hpp>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace uvmsim {
namespace {

constexpr std::size_t kSmallShare = 16;
constexpr std::size_t kMostHalvings = 4;

[[noreturn]] void give_up(const char* name, const char* step) {
  std::fprintf(stderr, "uvmsim: no address space for %s memory: %s: %s\n", name, step,
               std::strerror(errno));
  std::abort();
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
  for (std::size_t halvings = 0;; ++halvings, size_ /= 2) {
    user_base_ = reserve_aligned(size_);
    device_base_ = user_base_ != 0 ? reserve_aligned(size_) : 0;
    if (device_base_ != 0) break;
    if (user_base_ != 0) munmap(as_pointer(user_base_), size_);
    if (halvings == kMostHalvings) give_up(name, "mmap");
  }
  fd_ = memfd_create(name, MFD_CLOEXEC);
  if (fd_ < 0 || ftruncate(fd_, static_cast<off_t>(size_)) != 0) give_up(name, "memfd");
  const int shared = MAP_SHARED | MAP_FIXED | MAP_NORESERVE;
  void* device = mmap(as_pointer(device_base_), size_, PROT_READ | PROT_WRITE, shared, fd_, 0);
  void* user = as_pointer(user_base_);
  if (host_access_ == HostAccess::kReadWrite) user = mmap(user, size_, PROT_NONE, shared, fd_, 0);
  if (device == MAP_FAILED || user == MAP_FAILED) give_up(name, "mmap of the memfd");
  for (const std::uintptr_t view : {user_base_, device_base_}) {
    if (madvise(as_pointer(view), size_, MADV_DONTFORK) != 0 ||
        madvise(as_pointer(view), size_, MADV_DONTDUMP) != 0) {
      give_up(name, "madvise");
    }
  }
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
  const std::size_t offset = offset_of(address);
  Part& part = offset < large_.begin ? small_ : large_;
  const std::size_t length = round_up(bytes, part.unit);
  if (host_access_ == HostAccess::kReadWrite) mprotect(as_pointer(address), length, PROT_NONE);
  // The next owner of the address must find zeros; should the hole fail, write them.
  if (fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                static_cast<off_t>(length)) != 0) {
    std::memset(device_view(address), 0, length);
  }
  if (capture_base_ != 0) madvise(as_pointer(capture_base_ + offset), length, MADV_DONTNEED);
  part.intervals.free(offset - part.begin, length);
}

std::byte* Arena::device_view(std::uintptr_t address) const {
  return reinterpret_cast<std::byte*>(device_base_ + offset_of(address));
}

std::byte* Arena::capture_view(std::uintptr_t address) {
  if (capture_base_ == 0) {
    void* view = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd_, 0);
    if (view == MAP_FAILED) return nullptr;
    madvise(view, size_, MADV_DONTFORK);
    madvise(view, size_, MADV_DONTDUMP);
    capture_base_ = reinterpret_cast<std::uintptr_t>(view);
  }
  return reinterpret_cast<std::byte*>(capture_base_ + offset_of(address));
}

bool Arena::meets(std::uintptr_t address, std::size_t bytes) const {
  for (const std::uintptr_t base : {user_base_, device_base_, capture_base_}) {
    if (base != 0 && address < base + size_ && base < address + bytes) return true;
  }
  return false;
}

void Arena::forget_capture_view() {
  if (capture_base_ != 0) madvise(as_pointer(capture_base_), size_, MADV_DONTNEED);
}

void Arena::abandon() {
  close(fd_);
  fd_ = -1;
}

}  // namespace uvmsim
