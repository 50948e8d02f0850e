#include <uvmalloc/allocator/base/owner_lock.hpp>

#include <linux/membarrier.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include <uvmalloc/allocator/base/sanitizers.hpp>
#include <uvmalloc/runtime/log.hpp>

namespace uvm {
namespace {

// ThreadSanitizer does not see the barrier.
constexpr bool kMayBeAsymmetric = !UVMALLOC_THREAD_SANITIZER;

bool barrier(int command) {
  return syscall(SYS_membarrier, command, 0, 0) == 0;
}

// Every thread of the process passes a full barrier. What has worked may fail later, for want of
// memory or since a filter of system calls (seccomp) has been put in place. Without the barrier an
// owner and a taker could be inside together, and owners cannot be told to take the lock otherwise.
void pass_barrier() {
  if (barrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED)) [[likely]]
    return;
  // Slow, and of all processes.
  if (barrier(MEMBARRIER_CMD_GLOBAL)) return;
  log(LogLevel::kError,
      "membarrier, which worked when the process began, fails now ({}): threads cannot be stopped "
      "safely any more",
      std::strerror(errno));
  std::abort();
}

}  // namespace

bool OwnerLock::asymmetric_ = false;

void OwnerLock::prepare() {
  static const bool kPrepared = use(Kind::kAsymmetric) || use(Kind::kSymmetric);
  static_cast<void>(kPrepared);
}

bool OwnerLock::use(Kind kind) {
  static const bool kPossible = kMayBeAsymmetric &&
                                barrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) &&
                                barrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
  if (kind == Kind::kAsymmetric && !kPossible) return false;
  asymmetric_ = kind == Kind::kAsymmetric;
  return true;
}

void OwnerLock::spin() {
  while (busy_.exchange(true, std::memory_order_acquire)) sched_yield();
}

void OwnerLock::enter_slowly() {
  while (taken_.load(std::memory_order_acquire)) {
    busy_.store(false, std::memory_order_release);
    while (taken_.load(std::memory_order_acquire)) sched_yield();
    busy_.store(true, std::memory_order_seq_cst);
  }
}

void OwnerLock::take(std::span<OwnerLock* const> locks) {
  if (!asymmetric_) {
    for (OwnerLock* lock : locks) lock->spin();
    return;
  }
  if (locks.empty()) return;
  for (OwnerLock* lock : locks) lock->taken_.store(true, std::memory_order_seq_cst);
  pass_barrier();
  for (OwnerLock* lock : locks) {
    while (lock->busy_.load(std::memory_order_acquire)) sched_yield();
  }
}

void OwnerLock::give_back(std::span<OwnerLock* const> locks) {
  for (OwnerLock* lock : locks) {
    (asymmetric_ ? lock->taken_ : lock->busy_).store(false, std::memory_order_release);
  }
}

}  // namespace uvm
