#include "allocator/base/asymmetric_lock.hpp"

#include <linux/membarrier.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "allocator/base/sanitizers.hpp"
#include "runtime/log.hpp"

namespace uvm {
namespace {

// ThreadSanitizer does not know membarrier, and would report races.
constexpr bool kMayBeAsymmetric = !UVMALLOC_THREAD_SANITIZER;

bool barrier(int command) {
  return syscall(SYS_membarrier, command, 0, 0) == 0;
}

// Makes every thread of the process pass a full barrier. Aborts if membarrier fails, which may
// happen even if earlier calls worked: if memory is short, or if a filter of system calls (seccomp)
// was installed. Without the barrier two threads could hold one lock. Locks in use cannot be made
// symmetric.
void pass_barrier() {
  if (barrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED)) [[likely]]
    return;
  // Slower, because this command covers the threads of all processes.
  if (barrier(MEMBARRIER_CMD_GLOBAL)) return;
  log(LogLevel::kError,
      "membarrier, which worked when the process began, fails now ({}): threads cannot be stopped "
      "safely any more",
      std::strerror(errno));
  std::abort();
}

}  // namespace

bool AsymmetricLock::asymmetric_ = false;

void AsymmetricLock::prepare() {
  static const bool kPrepared = use(Kind::kAsymmetric) || use(Kind::kSymmetric);
  static_cast<void>(kPrepared);
}

bool AsymmetricLock::use(Kind kind) {
  static const bool kPossible = kMayBeAsymmetric &&
                                barrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) &&
                                barrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
  if (kind == Kind::kAsymmetric && !kPossible) return false;
  asymmetric_ = kind == Kind::kAsymmetric;
  return true;
}

void AsymmetricLock::lock_symmetric() {
  while (busy_.exchange(true, std::memory_order_acquire)) busy_.wait(true);
}

void AsymmetricLock::lock_owner_slow() {
  while (taken_.load(std::memory_order_acquire)) {
    busy_.store(false, std::memory_order_release);
    taken_.wait(true);
    busy_.store(true, std::memory_order_seq_cst);
  }
}

void AsymmetricLock::lock_all(std::span<AsymmetricLock* const> locks) {
  if (!asymmetric_) {
    for (AsymmetricLock* lock : locks) {
      while (lock->busy_.exchange(true, std::memory_order_acquire)) sched_yield();
    }
    return;
  }
  if (locks.empty()) return;
  for (AsymmetricLock* lock : locks) lock->taken_.store(true, std::memory_order_seq_cst);
  pass_barrier();
  for (AsymmetricLock* lock : locks) {
    while (lock->busy_.load(std::memory_order_acquire)) sched_yield();
  }
}

void AsymmetricLock::unlock_all(std::span<AsymmetricLock* const> locks) {
  for (AsymmetricLock* lock : locks) {
    std::atomic<bool>& held = asymmetric_ ? lock->taken_ : lock->busy_;
    held.store(false, std::memory_order_release);
    held.notify_one();
  }
}

}  // namespace uvm
