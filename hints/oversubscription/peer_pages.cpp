#include "hints/oversubscription/peer_pages.hpp"

#include <algorithm>

namespace uvm::live {

PeerPages::Peer* PeerPages::peer_of(int device) {
  const auto found = std::ranges::find(peers_, device, &Peer::device);
  return found == peers_.end() ? nullptr : &*found;
}

// Prefer the peer where the page was before, if that peer has room, because the peer may still have
// the page's chunk.
int PeerPages::send(Page& page) {
  Peer* known = peer_of(page.peer);
  if (known == nullptr || known->count >= known->room) {
    const auto found =
        std::ranges::find_if(peers_, [](const Peer& peer) { return peer.count < peer.room; });
    if (found == peers_.end()) return Page::kNoPeer;
    if (known != nullptr) std::erase(known->visitors, &page);
    known = &*found;
    known->visitors.push_back(&page);
    page.peer = known->device;
  }
  ++known->count;
  page.is_on_peer = true;
  page.peer_period = period_;
  return page.peer;
}

void PeerPages::came_back(Page& page) {
  if (!page.is_on_peer) return;
  page.is_on_peer = false;
  --peer_of(page.peer)->count;
}

bool PeerPages::has_room() const {
  return std::ranges::any_of(peers_, [](const Peer& peer) { return peer.count < peer.room; });
}

std::vector<Page*> PeerPages::set_room(int device, std::size_t pages) {
  Peer* peer = peer_of(device);
  if (peer == nullptr) peer = &peers_.emplace_back(Peer{.device = device});
  peer->room = pages;
  std::vector<Page*> leaving;
  for (Page* page : peer->visitors) {
    if (peer->count <= pages) break;
    if (!page->is_on_peer) continue;
    came_back(*page);
    leaving.push_back(page);
  }
  return leaving;
}

std::size_t PeerPages::pages_of(int device) const {
  const auto found = std::ranges::find(peers_, device, &Peer::device);
  return found == peers_.end() ? 0 : found->visitors.size();
}

void PeerPages::end_period() {
  for (Peer& peer : peers_) {
    std::erase_if(peer.visitors, [this](Page* page) {
      if (page->is_on_peer || page->peer_period == period_) return false;
      page->peer = Page::kNoPeer;
      return true;
    });
  }
  ++period_;
}

}  // namespace uvm::live
