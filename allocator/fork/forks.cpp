#include "allocator/fork/forks.hpp"

#include <pthread.h>

#include <mutex>
#include <new>
#include <vector>

#include "allocator/fork/fork_guard.hpp"
#include "runtime/log.hpp"
#include "runtime/ranked.hpp"

namespace uvm {
namespace {

// Never destroyed, because a process may fork while it exits. The mutex has no rank: the forking
// thread takes it before all other locks.
struct Allocators {
  std::mutex mutex;
  std::vector<ForkGuard*> all;
};
Allocators& allocators() {
  static auto* const kAllocators = new Allocators;
  return *kAllocators;
}

void before_fork() noexcept {
  allocators().mutex.lock();
  for (ForkGuard* allocator : allocators().all) {
    allocator->before_fork();
    detail::forget_ranks();
  }
  ThreadCaches::lock_list_for_fork();
  detail::forget_ranks();
  lock_log_for_fork();
}

void release_lists() noexcept {
  unlock_log_after_fork();
  ThreadCaches::unlock_list_after_fork();
}

void after_fork_in_parent() noexcept {
  release_lists();
  const auto& all = allocators().all;
  for (auto at = all.rbegin(); at != all.rend(); ++at) (*at)->after_fork_in_parent();
  allocators().mutex.unlock();
}

void after_fork_in_child() noexcept {
  release_lists();
  const auto& all = allocators().all;
  for (auto at = all.rbegin(); at != all.rend(); ++at) (*at)->after_fork_in_child();
  allocators().mutex.unlock();
}

}  // namespace

void Forks::add(ForkGuard* allocator) {
  static const bool kInstalled =
      pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child) == 0;
  if (!kInstalled) throw std::bad_alloc();
  std::lock_guard lock(allocators().mutex);
  allocators().all.push_back(allocator);
}

void Forks::remove(ForkGuard* allocator) noexcept {
  std::lock_guard lock(allocators().mutex);
  std::erase(allocators().all, allocator);
}

}  // namespace uvm
