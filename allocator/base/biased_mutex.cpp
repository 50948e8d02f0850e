#include <uvmalloc/allocator/base/biased_mutex.hpp>

namespace uvm {

// With shared_.
void BiasedMutex::take_from_owner() {
  if (owner_.load(std::memory_order_relaxed) == nullptr) return;
  const std::array<OwnerLock*, 1> own = {&own_};
  OwnerLock::take(own);
  owner_.store(nullptr, std::memory_order_relaxed);
  OwnerLock::give_back(own);
  turns_ = 0;
}

void BiasedMutex::lock_for_fork() {
  shared_.lock();
  take_from_owner();
}

void BiasedMutex::after_fork_in_child() {
  // Whoever was on the way into it, or had been the only one who may, is not here.
  own_.reset();
  only_ = last_ = nullptr;
  turns_ = 0;
}

void BiasedMutex::lock_slowly(const void* self) {
  shared_.lock();
  take_from_owner();
  turns_ = last_ == self ? turns_ + 1 : 0;
  last_ = self;
  if (turns_ < kTurns) return;
  turns_ = 0;
  if (only_ == nullptr) only_ = self;
  if (only_ != self) return;
  // From here on the thread's own: it is inside already.
  owner_.store(self, std::memory_order_relaxed);
  own_.enter();
  by_owner_ = true;
  shared_.unlock();
}

}  // namespace uvm
