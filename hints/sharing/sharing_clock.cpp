#include "hints/sharing/sharing_clock.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ctime>
#include <thread>

namespace uvm::sharing {

using std::chrono::nanoseconds;

std::uint64_t SharingClock::now_ns() const {
  return static_cast<std::uint64_t>(
      nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count());
}

void SharingClock::sleep(nanoseconds time) const {
  std::this_thread::sleep_for(time);
}

void SharingClock::wait_for_change(const std::atomic<std::uint32_t>& word, std::uint32_t seen,
                                   nanoseconds most) const {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(most);
  const timespec time{seconds.count(), static_cast<long>((most - seconds).count())};
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, &time, nullptr, 0);
}

const SharingClock& SharingClock::of_machine() {
  static const auto* const kClock = new SharingClock;  // threads may wait while the process exits
  return *kClock;
}

}  // namespace uvm::sharing
