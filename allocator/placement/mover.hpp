// Moves blocks between places, advises and prefetches. Each function plans under the state lock,
// which it takes itself, and sends the hints without it. Thread-safe. In a forked child nothing
// moves. Functions that name a device throw std::out_of_range if it does not exist.
#pragma once

#include <cstddef>
#include <utility>

#include <uvmalloc/types.hpp>
#include "allocator/base/object_pool.hpp"
#include "allocator/state/charges.hpp"
#include "allocator/state/hint_dispatcher.hpp"
#include "allocator/state/makes_room.hpp"
#include "allocator/state/request.hpp"
#include "allocator/streams/stream_uses.hpp"

namespace uvm {

class Mover {
 public:
  Mover(Machine& machine, HeapState& state, StreamUses& uses, HintDispatcher& hints,
        Charges& charges, MakesRoom& room)
      : machine_(machine),
        state_(state),
        uses_(uses),
        hints_(hints),
        charges_(charges),
        room_(room) {}
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;

  // Adds a record for the destination, and plans advice and a prefetch. nullptr: `address` is in no
  // live block, or the block has the most records possible. Throws if a wait fails or there is no
  // memory.
  MovedStorage* move(void* address, const MoveRequest& move);
  // Prefetches the pages that the range touches; the block is not moved. False: the range is not in
  // one live block.
  bool prefetch(const void* address, std::size_t size_bytes, Place destination, int stream_device,
                StreamHandle stream);
  // Advises on the whole pages of the block that holds `address`. False: there is no such page.
  bool advise(const void* address, const WantedPlacement& wanted);

  // The live block that holds `address` is not used at that place any more. Does nothing if the
  // block would have no use left.
  void note_left(const void* address, Place place);
  // The live block that holds `address` is used at these places alone. False: nothing has changed.
  bool note_places(const void* address, PlaceSet places);

  // Undoes a note_places() for one place.
  void note_place_again(const void* address, Place place);

  // Detaches the record from its block. If the record is the last one, it stays, and the function
  // returns the block's address: free the block.
  void* detach(MovedStorage* record) noexcept;
  // Detaches all records of a block that is freed.
  void drop_records(const LockedHeap& heap, Block* block);

 private:
  MovedStorage* record_for(const LockedHeap& heap, Block* block, const MoveRequest& move);
  static bool moves_whole(const Block& block, const MoveRequest& move) {
    return move.size_bytes == 0 || move.size_bytes >= block.requested_bytes();
  }
  struct Moved {
    MovedStorage* record = nullptr;
    Block* block = nullptr;
    Charges::Change charged;
    TraceTime at = 0;
    TraceBlock traced;
    HintPlan plan;
    DeviceStream producer;
  };
  bool try_to_move(const void* address, const MoveRequest& move, bool is_prepared, Moved* out);
  static bool has_room(const LockedHeap& heap, const Block& block, const MoveRequest& move);
  void prepare(const void* address, const MoveRequest& move);
  static Charges::Change end_use(const LockedHeap& heap, Block* block, Place place) noexcept;
  void drop_record(const LockedHeap& heap, MovedStorage* record);

  Machine& machine_;
  HeapState& state_;
  StreamUses& uses_;
  HintDispatcher& hints_;
  Charges& charges_;
  MakesRoom& room_;
  ObjectPool<MovedStorage> records_ UVM_GUARDED_BY(state_);  // of moves
};

}  // namespace uvm
