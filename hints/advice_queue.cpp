#include "hints/advice_queue.hpp"

#include "hints/policy.hpp"

namespace uvm {

bool AdviceQueue::push(const Entry& entry) noexcept {
  const std::lock_guard lock(mutex_);
  const std::size_t size = size_.load(std::memory_order_relaxed);
  if (size == policy::kMostWaitingAdvice) return false;
  entries_[(first_ + size) % policy::kMostWaitingAdvice] = entry;
  size_.store(size + 1, std::memory_order_relaxed);
  return true;
}

bool AdviceQueue::front(Entry* out) {
  const std::lock_guard lock(mutex_);
  if (is_empty()) return false;
  *out = entries_[first_];
  return true;
}

void AdviceQueue::pop() {
  const std::lock_guard lock(mutex_);
  first_ = (first_ + 1) % policy::kMostWaitingAdvice;
  size_.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace uvm
