#include <uvmalloc/allocator/biased_mutex.hpp>

namespace uvm {

void BiasedMutex::lock_slowly(const void* self) {
  shared_.lock();
  if (owner_.load(std::memory_order_relaxed) != nullptr) {
    const std::array<OwnerLock*, 1> own = {&own_};
    OwnerLock::take(own);
    owner_.store(nullptr, std::memory_order_relaxed);
    OwnerLock::give_back(own);
    turns_ = 0;
  }
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
