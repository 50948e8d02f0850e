// How many pages a live plan of one device may send to other devices of the process: to those that
// the process uses, over links that are faster than the host's, and at most to a half of their free
// memory.
//
// Not thread-safe: LivePlanner's lock guards it.
#pragma once

#include <cstddef>
#include <vector>

#include "allocator/engine/heap_state.hpp"

namespace uvm {

class PeerRoom {
 public:
  // Asks the driver for links.
  PeerRoom(Machine& machine, HeapState& state, int device);

  // Asks the driver how much is free. `own_pages(device)`: pages of the plan that may have chunks
  // there, which count as free.
  template <class OwnPages>
  void measure(OwnPages own_pages) {
    for (Peer& peer : peers_) peer.free_pages = free_pages(peer.device) + own_pages(peer.device);
  }

  // Visits the peers with the pages that may be there: at most a half of those that the driver had
  // free at the last measurement, and of those that the peer's soft budget has left now. Calls no
  // driver.
  template <class Visit>
  void each(Visit visit) const {
    for (const Peer& peer : peers_) visit(peer.device, pages_on(peer));
  }

 private:
  static constexpr std::size_t kParts = 2;  // of free memory, of which pages of others get one

  struct Peer {
    int device = 0;
    std::size_t free_pages = 0;
  };

  std::size_t free_pages(int peer) const;
  std::size_t pages_on(const Peer& peer) const;

  Machine& machine_;
  HeapState& state_;
  std::vector<Peer> peers_;
};

}  // namespace uvm
