// Limits how many pages the live plan of one device may send to peers: other devices that the
// process uses, with links faster than the host's. A peer gets pages in at most half of its free
// memory.
//
// Not thread-safe: guarded by LivePlanner's sending lock.
#pragma once

#include <cstddef>
#include <vector>

#include "allocator/state/heap_state.hpp"

namespace uvm {

class PeerRoom {
 public:
  // Reads the links to other devices from the driver.
  PeerRoom(Machine& machine, HeapState& state, int device);

  // Reads the peers' free memory from the driver. `own_pages(device)` returns how many pages of the
  // plan may already be on a peer; these count as free.
  template <class OwnPages>
  void measure(OwnPages own_pages) {
    for (Peer& peer : peers_) peer.free_pages = free_pages(peer.device) + own_pages(peer.device);
  }

  // Calls visit(peer, pages) with the number of pages that may be on each peer: half of the pages
  // that are free by the driver's last figures, or by the peer's current soft budget if that is
  // less. Calls no driver.
  template <class Visit>
  void each(Visit visit) const {
    for (const Peer& peer : peers_) visit(peer.device, pages_on(peer));
  }

 private:
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
