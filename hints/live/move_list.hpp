// The moves of pages on which a live plan has decided, in the order of the decisions, until
// MoveLanes sends them. Each move is for one page of 2 MiB. Knows no driver, and decides nothing.
//
// Not thread-safe: LivePlanner's lock guards it.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <uvmalloc/device_runtime.hpp>
#include "hints/live/move_sink.hpp"

namespace uvm::live {

struct PlannedMove {
  // Moves that are sent together are sent in this order of their kinds.
  enum class Kind : std::uint8_t {
    kEndCopy,
    kEndInPlace,
    kDrop,
    kUseInPlace,
    kLeave,
    kLeavePeer,
    kDiscard,
    kKeepCopy,
    kBring,
    kWait,
  };

  Kind kind = Kind::kWait;
  std::uintptr_t page = 0;
  // The last use of a page that leaves; the newest kernel when a discarded page became free; the
  // first use of a page that comes.
  KernelNumber kernel = 0;
  Place place = Place::host();         // of a page that leaves
  Arrival arrival = Arrival::kCopied;  // of a page that comes
  bool follows_stream = false;         // it comes after the work so far of the stream at hand
  bool begins_group = false;
  DeviceStream user = {};  // of a page that is discarded
};

// Its functions are those of MoveSink.
class MoveList {
 public:
  using Kind = PlannedMove::Kind;

  void leave(std::uintptr_t page, Place place, KernelNumber last_use) {
    add({.kind = Kind::kLeave, .page = page, .kernel = last_use, .place = place});
  }
  void leave_peer(std::uintptr_t page) { add({.kind = Kind::kLeavePeer, .page = page}); }
  void discard(std::uintptr_t page, const DeviceStream& user, KernelNumber freed) {
    add({.kind = Kind::kDiscard, .page = page, .kernel = freed, .user = user});
  }
  void keep_copy(std::uintptr_t page) { add({.kind = Kind::kKeepCopy, .page = page}); }
  void end_copy(std::uintptr_t page) { add({.kind = Kind::kEndCopy, .page = page}); }
  void use_in_place(std::uintptr_t page, KernelNumber last_use) {
    add({.kind = Kind::kUseInPlace, .page = page, .kernel = last_use});
  }
  void end_in_place(std::uintptr_t page) { add({.kind = Kind::kEndInPlace, .page = page}); }
  void drop(std::uintptr_t page, KernelNumber last_use) {
    add({.kind = Kind::kDrop, .page = page, .kernel = last_use});
  }
  void hold_arrivals() { holds_arrivals_ = true; }
  void bring(std::uintptr_t page, Arrival arrival, KernelNumber need) {
    add({.kind = Kind::kBring,
         .page = page,
         .kernel = need,
         .arrival = arrival,
         .follows_stream = holds_arrivals_});
  }
  void end_group() { ends_group_ = true; }
  void wait_for(std::uintptr_t page) { add({.kind = Kind::kWait, .page = page}); }

  // Arrivals are not held any more.
  void clear() {
    moves_.clear();
    holds_arrivals_ = false;
    ends_group_ = false;
  }
  auto begin() const { return moves_.begin(); }
  auto end() const { return moves_.end(); }

 private:
  void add(PlannedMove move) {
    if (move.kind != Kind::kWait) move.begins_group = std::exchange(ends_group_, false);
    moves_.push_back(move);
  }

  std::vector<PlannedMove> moves_;
  bool holds_arrivals_ = false;
  bool ends_group_ = false;
};

}  // namespace uvm::live
