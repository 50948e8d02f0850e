// Which pages of a live plan are on other devices, whose links are faster than the host's, and how
// many pages may be on them. After a page has left a peer, the driver keeps the page's chunk on the
// peer until other memory needs it. So this class also remembers the pages that were on a peer
// recently.
//
// Not thread-safe, like LivePlan. Calls no driver.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "hints/oversubscription/page_set.hpp"

namespace uvm::live {

class PeerPages {
 public:
  // Chooses a peer with room for an evicted page. The page counts as being on that device from now
  // on. Returns Page::kNoPeer if no peer has room.
  int send(Page& page);
  // Records that the page is no longer on a peer, if it was.
  void came_back(Page& page);

  bool has_room() const;

  // Sets how many pages may be on the device. Returns the pages on the device beyond this number.
  std::vector<Page*> set_room(int device, std::size_t pages);

  // Returns the number of pages that are on the device, or were on it in this or the previous
  // period.
  std::size_t pages_of(int device) const;
  void end_period();

 private:
  struct Peer {
    int device = Page::kNoPeer;
    std::size_t room = 0;
    std::size_t count = 0;             // pages that are on the peer
    std::vector<Page*> visitors = {};  // these pages, and pages that were on the peer recently
  };

  Peer* peer_of(int device);

  std::vector<Peer> peers_;
  std::uint64_t period_ = 1;
};

}  // namespace uvm::live
