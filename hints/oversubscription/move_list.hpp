// The moves of pages on which a live plan has decided, in the order of the decisions, until
// MoveLanes sends them. Each move is for one page of 2 MiB. Knows no driver, and decides nothing.
// Nothing that a move does or fails to do changes the contents of a block in use.
//
// Not thread-safe: LivePlanner's plan lock guards it.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <uvmalloc/device_runtime.hpp>
#include "hints/oversubscription/use_log.hpp"

namespace uvm::live {

// Of the bytes of a page that comes to the device.
enum class Arrival : std::uint8_t {
  kCopied,
  kNew,      // they are nowhere else, so far as is known
  kDropped,  // nobody needs them
};

enum class Discarded : std::uint8_t {
  kYes,
  kInUse,    // the page is not free memory as a whole
  kRefused,  // the page, or its device, allows no discard
};

// The owner of the memory, as a plan needs it.
class PageOwner {
 public:
  virtual ~PageOwner() = default;
  // Pages of other memory stay where they are.
  virtual bool is_ours(PageNumber page) const = 0;
  // kYes: the page is free memory, and nobody gets it until the moves are sent. `user`: the stream
  // whose later work may use it.
  virtual Discarded take_free(PageNumber page, DeviceStream* user) = 0;
};

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
  PageNumber page{};
  // The last use of a page that leaves; the newest kernel when a discarded page became free; the
  // first use of a page that comes.
  KernelNumber kernel = 0;
  Place place = Place::host();         // of a page that leaves
  Arrival arrival = Arrival::kCopied;  // of a page that comes
  std::size_t free_chunks = 0;         // besides the one of the page that comes
  bool follows_stream = false;         // it comes after the work so far of the stream at hand
  bool begins_group = false;
  DeviceStream user = {};  // of a page that is discarded
};

class MoveList {
 public:
  using Kind = PlannedMove::Kind;

  // `discards`: the device can give up a page's contents.
  MoveList(PageOwner& owner, bool discards) : owner_(owner), discards_(discards) {}
  MoveList(const MoveList&) = delete;
  MoveList& operator=(const MoveList&) = delete;

  // The page goes to the host, or to another device that has room for it, after the kernel that
  // used it last.
  void leave(PageNumber page, Place place, KernelNumber last_use) {
    add_ours({.kind = Kind::kLeave, .page = page, .kernel = last_use, .place = place});
  }
  // A page that has left to a peer goes on to the host, and waits for nothing else.
  void leave_peer(PageNumber page) { add_ours({.kind = Kind::kLeavePeer, .page = page}); }
  // The page's contents are given up, and its chunk without a copy, if the whole page is free
  // memory. `freed`: the newest kernel when it became free; 0: not known.
  Discarded discard(PageNumber page, KernelNumber freed) {
    if (!discards_) return Discarded::kRefused;
    DeviceStream user;
    const Discarded taken = owner_.take_free(page, &user);
    if (taken == Discarded::kYes)
      add({.kind = Kind::kDiscard, .page = page, .kernel = freed, .user = user});
    return taken;
  }
  // The page's bytes stay on the host when it comes, until end_copy().
  void keep_copy(PageNumber page) { add_ours({.kind = Kind::kKeepCopy, .page = page}); }
  // Before the page is written to.
  void end_copy(PageNumber page) { add({.kind = Kind::kEndCopy, .page = page}); }
  // The page goes to the host, where the device uses it without faults, until end_in_place().
  void use_in_place(PageNumber page, KernelNumber last_use) {
    add_ours({.kind = Kind::kUseInPlace, .page = page, .kernel = last_use});
  }
  void end_in_place(PageNumber page) { add({.kind = Kind::kEndInPlace, .page = page}); }
  // A page whose bytes are on the host gives up its chunk, after the kernel that used it last and
  // before the next page comes, or all have left. The calling thread may wait for that kernel.
  void drop(PageNumber page, KernelNumber last_use) {
    add({.kind = Kind::kDrop, .page = page, .kernel = last_use});
  }
  // Pages that come from here on do so after the work so far of the stream at hand.
  void hold_arrivals() { holds_arrivals_ = true; }
  // The page comes to the device, after the evictions so far but the last ones, of `free_chunks`
  // pages: it needs none of these chunks. `need`: the kernel that uses it.
  void bring(PageNumber page, Arrival arrival, KernelNumber need, std::size_t free_chunks = 0) {
    add({.kind = Kind::kBring,
         .page = page,
         .kernel = need,
         .arrival = discards_ ? arrival : Arrival::kCopied,
         .free_chunks = free_chunks,
         .follows_stream = holds_arrivals_});
  }
  // The moves so far wait for none that follow: these are for later kernels.
  void end_group() { ends_group_ = true; }
  // Later work of the stream at hand waits for the page, if bring() was called for it.
  void wait_for(PageNumber page) { add({.kind = Kind::kWait, .page = page}); }

  // Moves the list out, and begins a new one. Arrivals are not held any more.
  void take(std::vector<PlannedMove>* out) {
    out->clear();
    std::swap(moves_, *out);
    holds_arrivals_ = false;
    ends_group_ = false;
  }

 private:
  void add(PlannedMove move) {
    if (move.kind != Kind::kWait) move.begins_group = std::exchange(ends_group_, false);
    moves_.push_back(move);
  }
  void add_ours(const PlannedMove& move) {
    if (owner_.is_ours(move.page)) add(move);
  }

  PageOwner& owner_;
  const bool discards_;
  std::vector<PlannedMove> moves_;
  bool holds_arrivals_ = false;
  bool ends_group_ = false;
};

}  // namespace uvm::live
