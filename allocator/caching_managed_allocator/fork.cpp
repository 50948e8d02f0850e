// Of CachingManagedAllocator: what a forked child finds.
#include <uvmalloc/allocator/caching_managed_allocator.hpp>

#include <algorithm>
#include <exception>

#include <uvmalloc/allocator/base/machine_memory.hpp>

namespace uvm {

bool CachingManagedAllocator::is_used_by_host(const Block& block) const {
  if (block.now() != BlockState::kLive) return false;
  const BlockExtras* extras = block.plain ? nullptr : pools_.extras(&block);
  if (extras != nullptr && extras->left_host) return false;
  if (pools_.at(block.pool).key.facade != Facade::kDevice) return true;
  const IndirectStorage* record = block.real.indirect;
  while (record != nullptr && !record->location().is_host()) record = record->next;
  return record != nullptr;
}

// What may take long, or walks folders, comes before the locks.
void CachingManagedAllocator::before_fork() noexcept {
  if (in_forked_child()) {
    lock_.lock_for_fork();
    return;
  }
  std::size_t available_bytes = 0;
  try {
    const std::size_t ranks = std::max(configuration_.local_ranks, 1u);
    available_bytes = less_reserve(available_host_bytes(), configuration_) / ranks;
    fork_snapshot_.find_files();
  } catch (const std::exception&) {
    // What is not found is copied anew.
  }
  // Nobody is inside an arena or a cache while the process is copied.
  small_arenas_.lock();
  frozen_.emplace(caches_);
  lock_.lock_for_fork();
  try {
    copy_for_child(available_bytes);
  } catch (const std::exception&) {
    fork_snapshot_.give_up(&book_.figures().forks);
  }
}

// With all locks.
void CachingManagedAllocator::copy_for_child(std::size_t available_bytes) {
  for (const auto& span : spans_.spans()) {
    if (span->ordinary) continue;
    const char* page = nullptr;
    pools_.each_block(*span, [&](const Block& block) {
      if (!is_used_by_host(block)) return;
      if (block.kind != BlockKind::kSmall) {
        fork_snapshot_.add(block.address(), block.requested_bytes());
        return;
      }
      // Small objects: their page as a whole, once.
      char* own = reinterpret_cast<char*>(address_of(block.address()) & ~(kPageBytes - 1));
      if (own != page) fork_snapshot_.add(own, kPageBytes);
      page = own;
    });
  }
  fork_snapshot_.take({configuration_.fork_limit_bytes, available_bytes,
                       host_backing() == HostBacking::kManaged && reach_ordinary_memory(devices_)},
                      &book_.figures().forks);
}

void CachingManagedAllocator::after_fork_in_parent() noexcept {
  if (in_forked_child()) return lock_.unlock();
  fork_snapshot_.release();
  lock_.unlock();
  frozen_.reset();
  small_arenas_.unlock();
  fork_snapshot_.say();
}

void CachingManagedAllocator::after_fork_in_child() noexcept {
  lock_.after_fork_in_child();
  if (in_forked_child()) return lock_.unlock();
  forked_child_ = true;
  figure_store_.leave_to_parent();
  caches_.abandon();
  trace_.after_fork_in_child();
  fork_snapshot_.restore();
  lock_.unlock();
  frozen_.reset();
  small_arenas_.unlock();
}

}  // namespace uvm
