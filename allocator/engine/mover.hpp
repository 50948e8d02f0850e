// Moves blocks between places, and asks for pages to be somewhere. The functions are
// CachingManagedAllocator's, and are described there.
#pragma once

#include <cstddef>

#include <uvmalloc/allocator/base/recycled.hpp>
#include <uvmalloc/allocator/engine/hint_dispatcher.hpp>
#include <uvmalloc/allocator/engine/stream_uses.hpp>
#include <uvmalloc/allocator/types.hpp>

namespace uvm {

class Mover {
 public:
  Mover(Machine& machine, HeapState& state, StreamUses& uses, HintDispatcher& hints)
      : machine_(machine), state_(state), uses_(uses), hints_(hints) {}
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;

  MovedStorage* move(void* address, const MoveRequest& move);
  bool prefetch(const void* address, std::size_t size_bytes, Place destination, int stream_device,
                StreamHandle stream);
  bool advise(const void* address, const WantedPlacement& wanted);

  // Takes the record off its block. Returns the block's address if the record is its last, which
  // stays: the block is to be freed.
  void* detach(MovedStorage* record) noexcept;
  // Takes all records off a block that is freed.
  void drop_records(const LockedHeap& heap, Block* block);

 private:
  MovedStorage* record_for(const LockedHeap& heap, Block* block, const MoveRequest& move);
  void drop_record(const LockedHeap& heap, MovedStorage* record);

  Machine& machine_;
  HeapState& state_;
  StreamUses& uses_;
  HintDispatcher& hints_;
  Recycled<MovedStorage> records_ UVM_GUARDED_BY(state_);  // of moves
};

}  // namespace uvm
