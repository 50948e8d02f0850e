#include "sim/engine/host_touches.hpp"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <thread>

#include "sim/engine/units.hpp"

namespace uvmsim {
namespace {

constexpr std::uint64_t kFeatures = UFFD_FEATURE_MISSING_SHMEM | UFFD_FEATURE_MINOR_SHMEM;

// Returns the descriptor, or -1 and the step that failed.
int open_for(HostTouches::Range arena, const char** failed_step) {
  *failed_step = "userfaultfd";
  const int descriptor = static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC));
  if (descriptor < 0) return -1;
  uffdio_api api{.api = UFFD_API, .features = kFeatures, .ioctls = 0};
  uffdio_register range{};
  range.range = {arena.address, arena.size_bytes};
  range.mode = UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_MINOR;
  *failed_step = "minor faults of shared memory";
  if (ioctl(descriptor, UFFDIO_API, &api) == 0) {
    *failed_step = "registering the managed memory";
    if (ioctl(descriptor, UFFDIO_REGISTER, &range) == 0) return descriptor;
  }
  const int error = errno;
  close(descriptor);
  errno = error;
  return -1;
}

}  // namespace

std::unique_ptr<HostTouches> HostTouches::start(Range arena, DeviceView device_view,
                                                Handler handler) {
  const char* failed_step = nullptr;
  const int descriptor = open_for(arena, &failed_step);
  if (descriptor < 0) {
    std::fprintf(stderr, "uvmsim: touches by the CPU are not tracked: the kernel refuses %s: %s\n",
                 failed_step, std::strerror(errno));
    return nullptr;
  }
  std::unique_ptr<HostTouches> touches(
      new HostTouches(descriptor, std::move(device_view), std::move(handler)));
  // Block all signals, so that the program's signals are handled by other threads.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread([served = touches.get()] { served->serve(); }).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return touches;
}

void HostTouches::unmap(Range range) {
  madvise(reinterpret_cast<void*>(range.address), range.size_bytes, MADV_DONTNEED);
}

void HostTouches::abandon() const {
  close(descriptor_);
}

void HostTouches::serve() const {
  for (;;) {
    uffd_msg message{};
    const ssize_t count = read(descriptor_, &message, sizeof(message));
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (count != static_cast<ssize_t>(sizeof(message))) return;
    if (message.event != UFFD_EVENT_PAGEFAULT) continue;
    const auto address = static_cast<std::uintptr_t>(message.arg.pagefault.address);
    map(handler_(round_down(address, kPageBytes),
                 (message.arg.pagefault.flags & UFFD_PAGEFAULT_FLAG_WRITE) != 0));
  }
}

void HostTouches::map(Range range) const {
  // Only pages that exist can be mapped, so touch each one.
  for (std::size_t offset = 0; offset < range.size_bytes; offset += kPageBytes) {
    const volatile std::byte* byte = device_view_(range.address + offset);
    static_cast<void>(*byte);
  }
  uffdio_continue request{};
  while (range.size_bytes != 0) {
    request.range = {range.address, range.size_bytes};
    request.mode = 0;
    request.mapped = 0;
    const int result = ioctl(descriptor_, UFFDIO_CONTINUE, &request);
    if (result == 0) return;
    std::size_t done = request.mapped > 0 ? static_cast<std::size_t>(request.mapped) : 0;
    if (errno == EEXIST || errno == ENOENT || errno == EFAULT) {
      // The page is already mapped, or no longer exists. The waiting thread retries.
      uffdio_range page{range.address + done, kPageBytes};
      ioctl(descriptor_, UFFDIO_WAKE, &page);
      done += kPageBytes;
    } else if (errno != EAGAIN) {
      uffdio_range rest{range.address, range.size_bytes};
      ioctl(descriptor_, UFFDIO_WAKE, &rest);
      return;
    }
    range.address += done;
    range.size_bytes -= done < range.size_bytes ? done : range.size_bytes;
  }
}

}  // namespace uvmsim
