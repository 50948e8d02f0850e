#include "allocator/streams/private_memory.hpp"

#include <algorithm>
#include <set>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>
#include "runtime/log.hpp"

namespace uvm {

PrivatePoolTable::Scope PrivateMemory::scope_of(int device, StreamHandle stream) {
  std::vector<PrivatePoolTable::Scope> scopes;
  {
    const HeapGuard heap(state_);
    scopes = heap->private_pools.open_scopes(device);
  }
  // Without the lock, because a filter may call the driver.
  for (const PrivatePoolTable::Scope& scope : scopes) {
    if ((*scope.routed)(stream)) return scope;
  }
  return {};
}

std::uint64_t PrivateMemory::begin(int device, std::uint64_t id,
                                   PrivatePoolTable::StreamFilter routed, bool capturing) {
  machine_.require_device();
  if (!capturing) {
    const HeapGuard heap(state_);
    return heap->private_pools.begin(device, id, std::move(routed), false);
  }
  // The program begins its capture after this function returns.
  CaptureGuard& captures = CaptureGuard::of_process();
  CaptureGuard::Beginning(captures).begun();
  try {
    const HeapGuard heap(state_);
    return heap->private_pools.begin(device, id, std::move(routed), true);
  } catch (...) {
    captures.end();
    throw;
  }
}

void PrivateMemory::retain(int device, std::uint64_t id) {
  machine_.require_device();
  const HeapGuard heap(state_);
  heap->private_pools.retain(device, id);
}

std::size_t PrivateMemory::users(int device, std::uint64_t id) const {
  const HeapGuard heap(state_);
  return heap->private_pools.users(device, id);
}

bool PrivateMemory::give_whole_pages(int device, std::uint64_t id) {
  if (machine_.in_forked_child()) return false;
  const HeapGuard heap(state_);
  return heap->private_pools.give_whole_pages(device, id);
}

std::vector<PrivateBlock> PrivateMemory::blocks(int device, std::uint64_t id) const {
  ThreadCaches::StopTheWorld stopped(caches_);
  std::vector<PrivateBlock> out;
  const HeapGuard heap(state_);
  for (const auto& span : heap->spans.spans()) {
    heap->pools.directory().each_block(*span, [&](const Block& block) {
      const StreamKey& key = heap->pools.at(block.pool).key;
      if (block.now() != BlockState::kLive || key.private_pool != id || key.device != device) {
        return;
      }
      out.push_back({block.address(), block.size_bytes(), block.requested_bytes()});
    });
  }
  std::sort(out.begin(), out.end(), [](const PrivateBlock& left, const PrivateBlock& right) {
    return left.address < right.address;
  });
  return out;
}

void PrivateMemory::restore(int device, std::uint64_t id, const std::vector<PrivateBlock>& blocks) {
  machine_.require_device();
  if (state_.is_capturing())
    throw std::logic_error("a private pool cannot be restored during a capture");
  using Extent = std::pair<void*, std::size_t>;
  std::set<Extent> wanted;
  for (const PrivateBlock& block : blocks) wanted.emplace(block.address, block.size_bytes);
  std::set<Extent> kept;
  for (const PrivateBlock& block : this->blocks(device, id)) {
    if (wanted.contains({block.address, block.size_bytes})) {
      kept.emplace(block.address, block.size_bytes);
    } else {
      returns_.free_block(block.address);
    }
  }
  // Return the freed blocks to their pools first.
  returner_.flush_all();
  fenced_.drain_all();
  for (const PrivateBlock& block : blocks) {
    if (!kept.contains({block.address, block.size_bytes})) restore_block(device, id, block);
  }
}

void PrivateMemory::restore_block(int device, std::uint64_t id, const PrivateBlock& wanted) {
  PageBlock* block = nullptr;
  StreamKey key;
  Request request{Facade::kDevice,    device, wanted.size_bytes, wanted.requested_bytes, nullptr,
                  PoolClass::kPacked, {}};
  {
    const HeapGuard heap(state_);
    const Block* there = heap->pools.directory().find(wanted.address);
    const Pool* pool = there != nullptr ? &heap->pools.at(there->pool) : nullptr;
    if (pool != nullptr && pool->key.private_pool == id && pool->key.device == device) {
      block = heap->pools.take_at(static_cast<char*>(wanted.address), wanted.size_bytes);
    }
    if (block != nullptr) {
      key = pool->key;
      request.stream = key.stream;
      request.pool_class = pool->pool_class;
      request.pools = stream_of(pool->index);
      mark_live(heap, request, block, block->owning_pool);
    }
  }
  if (block == nullptr) {
    throw std::invalid_argument(fmt::format(
        "{} at {} cannot be restored: the memory does not belong to private pool {}, or "
        "it is in use",
        format_size(wanted.size_bytes), wanted.address, id));
  }
  if (ThreadCache* cache = caches_.local()) {
    const CacheOwnerGuard inside(*cache);
    counts_.open(cache, key, request.pools);
  }
  counts_.allocated(request, *block, true);
}

bool PrivateMemory::end(int device, std::uint64_t id, std::uint64_t scope) {
  if (machine_.in_forked_child()) return false;
  {
    const HeapGuard heap(state_);
    if (!heap->private_pools.end(device, id, scope)) return false;
  }
  fenced_.record_deferred();
  hints_.send_pending();
  return true;
}

bool PrivateMemory::release(int device, std::uint64_t id) {
  if (machine_.in_forked_child()) return false;
  {
    const HeapGuard heap(state_);
    if (!heap->private_pools.release(device, id)) return false;
  }
  fenced_.record_deferred();
  hints_.send_pending();
  stream_pools_.give_back_released();
  return true;
}

}  // namespace uvm
