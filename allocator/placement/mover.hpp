// Moves blocks between places, advises and prefetches. Each function takes the state lock to plan,
// and sends the hints after it has released the lock. Thread-safe. In a forked child no page moves.
// Functions that get a device throw std::out_of_range if the device does not exist.
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

  // Adds a record for the destination to the block, and sends advice and a prefetch. Returns the
  // record, or nullptr if `address` is in no live block or the block cannot have more records.
  // Throws if a wait fails or if there is no memory.
  MovedStorage* move(void* address, const MoveRequest& move);
  // Prefetches the pages that the range touches. The block gets no record at the destination.
  // Returns false if the range is not within one live block.
  bool prefetch(const void* address, std::size_t size_bytes, Place destination, int stream_device,
                StreamHandle stream);
  // Sends advice for the whole pages of the block that holds `address`. Returns false if there is
  // no such page.
  bool advise(const void* address, const WantedPlacement& wanted);

  // Records that the live block that holds `address` is no longer used at `place`. Does nothing if
  // the block would then be used nowhere.
  void note_left(const void* address, Place place);
  // Records that the live block that holds `address` is used only at these places. Returns whether
  // anything has changed.
  bool note_places(const void* address, PlaceSet places);

  // Undoes note_places() for one place.
  void note_place_again(const void* address, Place place);

  // Detaches the record from its block and returns nullptr. If the record is the block's last one,
  // leaves the record and returns the block's address: the caller must free the block.
  void* detach(MovedStorage* record) noexcept;
  // Detaches all records of a block that is being freed.
  void drop_records(const LockedHeap& heap, Block* block);

 private:
  MovedStorage* record_for(const LockedHeap& heap, Block* block, const MoveRequest& move);
  static bool moves_whole(const Block& block, const MoveRequest& move) {
    return move.size_bytes == 0 || move.size_bytes >= block.requested_bytes();
  }
  // Returns whether the move itself records the producing stream as a user.
  static bool adds_producer(const MoveRequest& move) {
    return !move.destination.is_device() && !move.wait;
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
  ObjectPool<MovedStorage> records_ UVM_GUARDED_BY(state_);  // records of moves
};

}  // namespace uvm
