#include "allocator/reclaim/idle_decay.hpp"

#include <chrono>
#include <new>

namespace uvm {

void IdleDecay::decay(Decay::Time now) {
  if (machine_.in_forked_child() || state_.is_capturing()) return;
  bool is_period_over = false;
  {
    const HeapGuard heap(state_);
    is_period_over = decay_.is_period_over(now);
  }
  if (is_period_over) displaced_.shed_finished_fences();
  if (is_period_over) {
    // Only once a period, because this stops all threads.
    const ThreadCaches::StopTheWorld stopped(caches_);
    const HeapGuard heap(state_);
    cached_by_threads_ = caches_.cached_bytes();
  }
  std::size_t due_bytes = 0;
  {
    const HeapGuard heap(state_);
    due_bytes = decay_.due(now, cached_by_threads_ + reclaimer_.idle_bytes(heap));
  }
  // Rounded to the nearest page. If rounded down, the last page would never be given back.
  due_bytes = (due_bytes + kPageBytes / 2) & ~(kPageBytes - 1);
  if (due_bytes == 0) return;
  const std::size_t left_bytes = reclaimer_.release_pages(due_bytes);
  const HeapGuard heap(state_);
  decay_.gave_back(left_bytes);
}

void IdleDecay::decay_now() noexcept {
  try {
    decay(std::chrono::steady_clock::now());
  } catch (const std::bad_alloc&) {
    // The memory is still due.
  }
}

void IdleDecay::every_so_often() noexcept {
  constexpr unsigned kLast = policy::kSlowCallsPerClockRead - 1;
  const unsigned call = slow_calls_.fetch_add(1, std::memory_order_relaxed);
  if (call % policy::kSlowCallsPerClockRead == kLast) decay_now();
}

bool IdleDecay::under_pressure() {
  if (!enabled() || state_.is_capturing()) return false;
  decay(std::chrono::steady_clock::now());
  return true;
}

}  // namespace uvm
