// Moves blocks between places, and asks for pages to be somewhere. The functions are
// CachingManagedAllocator's, and are described there.
#pragma once

#include <cstddef>
#include <functional>
#include <utility>

#include <uvmalloc/types.hpp>
#include "allocator/base/recycled.hpp"
#include "allocator/engine/charges.hpp"
#include "allocator/engine/hint_dispatcher.hpp"
#include "allocator/engine/request.hpp"
#include "allocator/engine/stream_uses.hpp"

namespace uvm {

class Mover {
 public:
  // Makes room under the limit of the request's device. Throws OutOfMemoryError.
  using MakeRoom = std::function<void(const Request&)>;

  Mover(Machine& machine, HeapState& state, StreamUses& uses, HintDispatcher& hints,
        Charges& charges, MakeRoom make_room)
      : machine_(machine),
        state_(state),
        uses_(uses),
        hints_(hints),
        charges_(charges),
        make_room_(std::move(make_room)) {}
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;

  MovedStorage* move(void* address, const MoveRequest& move);
  bool prefetch(const void* address, std::size_t size_bytes, Place destination, int stream_device,
                StreamHandle stream);
  bool advise(const void* address, const WantedPlacement& wanted);

  // The live block that holds `address` is not used at that place any more, if it is elsewhere.
  void note_left(const void* address, Place place);
  // The live block that holds `address` is used at none but these places.
  // False: nothing has changed.
  bool note_places(const void* address, PlaceSet places);

  void note_place_again(const void* address, Place place);

  // Takes the record off its block. Returns the block's address if the record is its last, which
  // stays: the block is to be freed.
  void* detach(MovedStorage* record) noexcept;
  // Takes all records off a block that is freed.
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
  const MakeRoom make_room_;
  Recycled<MovedStorage> records_ UVM_GUARDED_BY(state_);  // of moves
};

}  // namespace uvm
