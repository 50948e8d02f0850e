#include "allocator/placement/peer_room.hpp"

#include <algorithm>

#include "hints/oversubscription/policy.hpp"

namespace uvm {

PeerRoom::PeerRoom(Machine& machine, HeapState& state, int device)
    : machine_(machine), state_(state) {
  // On shared devices, other programs may need the peers' free memory, so peers get no pages.
  if (machine.configuration.share) return;
  for (int peer = 0; peer < machine.device_count(); ++peer) {
    const bool has_pages = !machine.budget.devices[static_cast<std::size_t>(peer)].coherent;
    bool is_fast = false;
    if (peer != device && has_pages && machine.runtime.has_fast_link(device, peer, &is_fast).ok() &&
        is_fast)
      peers_.push_back({.device = peer});
  }
}

// Returns 0 for a device that the process does not use, because a query would make a context on
// that device.
std::size_t PeerRoom::free_pages(int peer) const {
  MemoryFigures figures;
  if (!machine_.runtime.has_context(peer) || !machine_.runtime.memory_figures(peer, &figures).ok())
    return 0;
  return figures.free_bytes / kPageBytes;
}

std::size_t PeerRoom::pages_on(const Peer& peer) const {
  if (peer.free_pages == 0) return 0;
  const HeapGuard heap(state_);
  return std::min(peer.free_pages, heap->planner.credit_bytes(peer.device) / kPageBytes) /
         policy::kPeerParts;
}

}  // namespace uvm
