#include "allocator/streams/stream_uses.hpp"

#include <algorithm>
#include <stdexcept>

#include <fmt/format.h>

namespace uvm {

void StreamUses::prepare_uses(const LockedHeap& heap, Block* block, std::size_t count) {
  std::vector<DeviceStream>& uses = heap->pools.side_states().make(block).uses;
  const std::size_t wanted = uses.size() + count;
  if (uses.capacity() < wanted) uses.reserve(std::max(wanted, 2 * uses.size()));
}

void StreamUses::add_use(const LockedHeap& heap, Block* block, DeviceStream use) {
  const StreamKey& key = heap->pools.at(block->pool).key;
  if (key.facade == Facade::kDevice && use == key.device_stream()) return;
  std::vector<DeviceStream>& uses = heap->pools.side_states().make(block).uses;
  if (std::find(uses.begin(), uses.end(), use) == uses.end()) uses.push_back(use);
}

bool StreamUses::record_use(const void* address, const DeviceStream& stream) {
  machine_.check_device(stream.device);
  if (machine_.in_forked_child()) return false;
  TraceTime at = 0;
  const void* base = nullptr;
  {
    const HeapGuard heap(state_);
    Block* block = heap->live_block(address);
    if (block == nullptr) return false;
    add_use(heap, block, stream);
    at = machine_.trace.now();
    base = block->address();
  }
  machine_.trace.used(at, base, stream.device, stream.handle);
  return true;
}

bool StreamUses::record_use_of_all(const void* address, int device) {
  machine_.check_device(device);
  if (machine_.in_forked_child()) return false;
  const HeapGuard heap(state_);
  Block* block = heap->live_block(address);
  if (block == nullptr) return false;
  // Makes room for all uses first, so that it records none if memory runs out.
  prepare_uses(heap, block, position(heap->pools.table().streams_end()));
  for (StreamIndex index{}; index < heap->pools.table().streams_end(); ++index) {
    const Pool& pool = heap->pools.at(index);
    if (pool.key.facade != Facade::kDevice || pool.key.device != device || pool.stream_is_over) {
      continue;
    }
    const DeviceStream stream = pool.key.device_stream();
    if (!stream.is_gone() || !machine_.stream_work.is_over(stream)) add_use(heap, block, stream);
  }
  return true;
}

std::vector<DeviceStream> StreamUses::uses_of(const void* address) const {
  if (machine_.in_forked_child()) return {};
  const HeapGuard heap(state_);
  const Block* block = heap->live_block(address);
  return block != nullptr ? fenced_.users_of(heap, *block) : std::vector<DeviceStream>();
}

bool StreamUses::mark_exported(const void* address) {
  if (machine_.in_forked_child()) return false;
  const HeapGuard heap(state_);
  Block* block = heap->live_block(address);
  if (block == nullptr) return false;
  block->exported = true;
  block->has_no_side_state = false;
  return true;
}

void StreamUses::mark_live_exported() {
  if (machine_.in_forked_child()) return;
  ThreadCaches::StopTheWorld stopped(caches_);
  const HeapGuard heap(state_);
  for (const auto& span : heap->spans.spans()) {
    heap->pools.directory().each_block(*span, [&](const Block& block) {
      // Small blocks are never shared.
      if (block.kind == BlockKind::kSmall || block.now() != BlockState::kLive) return;
      Block* live = heap->pools.directory().block_at(block.address());
      live->exported = true;
      live->has_no_side_state = false;
    });
  }
}

void StreamUses::set_pinned(const void* address, bool pinned) {
  const HeapGuard heap(state_);
  Block* block = heap->live_block(address);
  if (block == nullptr) return;
  heap->pools.side_states().make(block).pinned = pinned;
}

void StreamUses::wait_for_uses(const void* address) {
  for (const DeviceStream& user : uses_of(address)) {
    const RuntimeStatus status = machine_.stream_work.wait_for(user);
    if (status.ok()) continue;
    throw std::runtime_error(
        fmt::format("uvmalloc: the work of a stream of device {} on {} cannot be waited for: {}",
                    user.device, address, status.text()));
  }
}

}  // namespace uvm
