// How many pages the live plan of one device may send to other devices: to those that the process
// uses over links faster than the host's, at most half of their free memory.
//
// Not thread-safe: LivePlanner's lock guards it.
#pragma once

#include <cstddef>
#include <vector>

#include "allocator/state/heap_state.hpp"

namespace uvm {

class PeerRoom {
 public:
  // Reads the links from the driver.
  PeerRoom(Machine& machine, HeapState& state, int device);

  // Reads the peers' free memory from the driver. `own_pages(device)`: pages of the plan that may
  // have chunks there, which count as free.
  template <class OwnPages>
  void measure(OwnPages own_pages) {
    for (Peer& peer : peers_) peer.free_pages = free_pages(peer.device) + own_pages(peer.device);
  }

  // Visits the peers with the number of pages that may be there. It is half of the peer's free
  // pages, by the driver's last figures or by the peer's soft budget now, whichever is less. Calls
  // no driver.
  template <class Visit>
  void each(Visit visit) const {
    for (const Peer& peer : peers_) visit(peer.device, pages_on(peer));
  }

 private:
  static constexpr std::size_t kParts = 2;  // one part of free memory is for pages of other devices

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
