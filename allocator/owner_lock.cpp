#include <uvmalloc/allocator/owner_lock.hpp>

#include <linux/membarrier.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace uvm {
namespace {

#if defined(__SANITIZE_THREAD__)
constexpr bool kMayBeAsymmetric = false;
#else
constexpr bool kMayBeAsymmetric = true;
#endif

bool barrier(int command) {
  return syscall(SYS_membarrier, command, 0, 0) == 0;
}

}  // namespace

bool OwnerLock::asymmetric_ = false;

void OwnerLock::prepare() {
  static const bool kAsymmetric = kMayBeAsymmetric &&
                                  barrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) &&
                                  barrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
  static const bool kSet = asymmetric_ = kAsymmetric;
  static_cast<void>(kSet);
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
  barrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
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
