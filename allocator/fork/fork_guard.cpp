#include "allocator/fork/fork_guard.hpp"

#include <algorithm>
#include <exception>

#include "allocator/base/machine_memory.hpp"
#include "allocator/inspection/introspection.hpp"
#include "allocator/spans/host_backing.hpp"

namespace uvm {

// Slow work and work that reads folders is done before the locks are taken.
void ForkGuard::before_fork() noexcept {
  if (machine_.in_forked_child()) {
    state_.lock_for_fork().lock_for_fork();
    return;
  }
  std::size_t available_bytes = 0;
  try {
    const std::size_t ranks = std::max(machine_.configuration.local_ranks, 1u);
    available_bytes = host_less_reserve(available_host_bytes(), machine_.configuration) / ranks;
    snapshot_.find_files();
  } catch (const std::exception&) {
    // take() writes the copies of earlier forks again if their files were not found.
  }
  // No thread may be inside an arena or a cache while the process is copied.
  arenas_.lock();
  stopped_.emplace(caches_);
  state_.lock_for_fork().lock_for_fork();
  const HeldHeap heap(state_);
  try {
    copy_for_child(heap, available_bytes);
  } catch (const std::exception&) {
    snapshot_.give_up(&heap->statistics.figures().forks);
  }
}

// Copies the live host blocks for the child. Called with all locks held.
void ForkGuard::copy_for_child(const LockedHeap& heap, std::size_t available_bytes) {
  for (const auto& span : heap->spans.spans()) {
    if (span->ordinary) continue;
    const char* page = nullptr;
    heap->pools.directory().each_block(*span, [&](const Block& block) {
      if (!Introspection::is_used_by_host(heap, block)) return;
      if (block.kind != BlockKind::kSmall) {
        snapshot_.add(block.address(), block.requested_bytes());
        return;
      }
      // Several small objects share a page, which is copied once.
      char* own = reinterpret_cast<char*>(address_of(block.address()) & ~(kPageBytes - 1));
      if (own != page) snapshot_.add(own, kPageBytes);
      page = own;
    });
  }
  snapshot_.take({machine_.configuration.fork_limit_bytes, available_bytes,
                  machine_.span_memory.host_backing() == HostBacking::kManaged &&
                      reach_ordinary_memory(machine_.devices)},
                 &heap->statistics.figures().forks);
}

void ForkGuard::after_fork_in_parent() noexcept {
  if (machine_.in_forked_child()) return state_.lock_for_fork().unlock();
  snapshot_.release();
  state_.lock_for_fork().unlock();
  stopped_.reset();
  arenas_.unlock();
  snapshot_.say();
}

void ForkGuard::after_fork_in_child() noexcept {
  state_.lock_for_fork().after_fork_in_child();
  if (machine_.in_forked_child()) return state_.lock_for_fork().unlock();
  machine_.forked_child = true;
  machine_.figure_store.leave_to_parent();
  caches_.abandon();
  machine_.trace.after_fork_in_child();
  snapshot_.restore();
  state_.lock_for_fork().unlock();
  stopped_.reset();
  arenas_.unlock();
}

void* ForkGuard::allocate_in_child(Facade facade, std::size_t size_bytes) {
  const HeapGuard heap(state_);
  return child_memory_.allocate(facade, size_bytes);
}

FreeResult ForkGuard::free_in_child(void* address) noexcept {
  const HeapGuard heap(state_);
  // The child does not free blocks of the parent: the copies disappear when the child ends.
  if (heap->pools.directory().find(address) != nullptr) return FreeResult::kFreed;
  return child_memory_.free(address) ? FreeResult::kFreed : FreeResult::kNotOurs;
}

}  // namespace uvm
