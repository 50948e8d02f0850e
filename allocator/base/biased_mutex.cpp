#include "allocator/base/biased_mutex.hpp"

#include "allocator/policy/allocation_policy.hpp"

namespace uvm {

// Ends the bias. The caller must hold shared_.
void BiasedMutex::take_from_owner() {
  if (owner_.load(std::memory_order_relaxed) == nullptr) return;
  const std::array<AsymmetricLock*, 1> own = {&own_};
  AsymmetricLock::lock_all(own);
  owner_.store(nullptr, std::memory_order_relaxed);
  AsymmetricLock::unlock_all(own);
  turns_ = 0;
}

void BiasedMutex::lock_for_fork() {
  shared_.lock();
  take_from_owner();
}

void BiasedMutex::after_fork_in_child() {
  // The threads that were locking the mutex, or that may hold the bias, do not exist in the child.
  own_.reset();
  bias_holder_ever_ = last_ = nullptr;
  turns_ = 0;
}

void BiasedMutex::lock_slow(const void* self) {
  shared_.lock();
  take_from_owner();
  turns_ = last_ == self ? turns_ + 1 : 0;
  last_ = self;
  if (turns_ < policy::kTurnsToBias) return;
  turns_ = 0;
  if (bias_holder_ever_ == nullptr) bias_holder_ever_ = self;
  if (bias_holder_ever_ != self) return;
  // The bias begins while this thread holds the mutex.
  owner_.store(self, std::memory_order_relaxed);
  own_.lock_owner();
  by_owner_ = true;
  shared_.unlock();
}

}  // namespace uvm
