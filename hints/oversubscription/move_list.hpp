// The page moves that a live plan has decided on, in the order of the decisions, until MoveLanes
// sends them. Each move is for one 2 MiB page. This class calls no driver and decides nothing.
// Neither a move nor its failure changes the contents of a block in use.
//
// Not thread-safe: LivePlanner's plan lock guards it.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <uvmalloc/device_runtime.hpp>
#include "hints/oversubscription/use_log.hpp"

namespace uvm::live {

// What happens to the bytes of a page that moves to the device.
enum class Arrival : std::uint8_t {
  kCopied,
  kNew,      // the page was never populated, as far as is known
  kDropped,  // no work needs the bytes
};

enum class Discarded : std::uint8_t {
  kYes,
  kInUse,    // the page is not wholly free memory
  kRefused,  // the page or its device does not allow a discard
};

// The interface of the memory's owner that a plan needs.
class PageOwner {
 public:
  virtual ~PageOwner() = default;
  // Returns whether the owner has the page. Pages of other memory are not moved.
  virtual bool is_ours(PageNumber page) const = 0;
  // Returns kYes if the page is free memory; then no request gets it until the moves are sent. Sets
  // `*user` to the stream whose later work may use the page.
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
  // For an eviction, the page's last use. For a discard, the newest kernel at the time when the
  // page became free. For a prefetch, the page's first use.
  KernelNumber kernel = 0;
  Place place = Place::host();         // destination of an eviction
  Arrival arrival = Arrival::kCopied;  // for a prefetch
  std::size_t free_chunks = 0;         // chunks that are free in addition to the page's own chunk
  bool follows_stream = false;         // waits for current work of the current stream
  bool begins_group = false;
  DeviceStream user = {};  // for a discard: the page's stream
};

class MoveList {
 public:
  using Kind = PlannedMove::Kind;

  // `discards`: the device supports discards.
  MoveList(PageOwner& owner, bool discards) : owner_(owner), discards_(discards) {}
  MoveList(const MoveList&) = delete;
  MoveList& operator=(const MoveList&) = delete;

  // Evicts the page to the host, or to another device that has room for it, after the kernel that
  // used the page last.
  void leave(PageNumber page, Place place, KernelNumber last_use) {
    add_ours({.kind = Kind::kLeave, .page = page, .kernel = last_use, .place = place});
  }
  // Moves a page from a peer to the host, without waiting for other work.
  void leave_peer(PageNumber page) { add_ours({.kind = Kind::kLeavePeer, .page = page}); }
  // If the whole page is free memory, discards its contents, so that its chunk becomes free without
  // a copy. `freed` is the newest kernel at the time when the page became free; 0: not known.
  Discarded discard(PageNumber page, KernelNumber freed) {
    if (!discards_) return Discarded::kRefused;
    DeviceStream user;
    const Discarded taken = owner_.take_free(page, &user);
    if (taken == Discarded::kYes)
      add({.kind = Kind::kDiscard, .page = page, .kernel = freed, .user = user});
    return taken;
  }
  // Keeps the page's bytes on the host while the page is on the device, until end_copy().
  void keep_copy(PageNumber page) { add_ours({.kind = Kind::kKeepCopy, .page = page}); }
  // Call this before the page is written to.
  void end_copy(PageNumber page) { add({.kind = Kind::kEndCopy, .page = page}); }
  // Evicts the page to the host, where the device uses it without faults until end_in_place().
  void use_in_place(PageNumber page, KernelNumber last_use) {
    add_ours({.kind = Kind::kUseInPlace, .page = page, .kernel = last_use});
  }
  void end_in_place(PageNumber page) { add({.kind = Kind::kEndInPlace, .page = page}); }
  // Frees the chunk of a page whose bytes are also on the host, after the kernel that used the page
  // last. The chunk is free before the next prefetch, or at the latest when all evictions are done.
  // The calling thread may wait for that kernel.
  void drop(PageNumber page, KernelNumber last_use) {
    add({.kind = Kind::kDrop, .page = page, .kernel = last_use});
  }
  // Makes all later prefetches of this list wait for the current work of the current stream.
  void hold_arrivals() { holds_arrivals_ = true; }
  // Prefetches the page. The prefetch follows all earlier evictions except the last ones of
  // `free_chunks` pages, whose chunks the page does not need. `need` is the kernel that uses the
  // page.
  void bring(PageNumber page, Arrival arrival, KernelNumber need, std::size_t free_chunks = 0) {
    add_ours({.kind = Kind::kBring,
              .page = page,
              .kernel = need,
              .arrival = discards_ ? arrival : Arrival::kCopied,
              .free_chunks = free_chunks,
              .follows_stream = holds_arrivals_});
  }
  // The earlier moves must not wait for the following moves, which are for later kernels.
  void end_group() { ends_group_ = true; }
  // Makes later work of the current stream wait for the page, if bring() was called for it.
  void wait_for(PageNumber page) { add({.kind = Kind::kWait, .page = page}); }

  // Moves the list to `*out`, and begins a new list, without the effect of hold_arrivals().
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
