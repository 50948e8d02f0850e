// Which pages of a live plan are on other devices, whose links are faster than the host's, and how
// many may be. A peer's driver leaves a chunk with a page that has gone, until somebody needs it.
// So the pages that were there lately are known too.
//
// Not thread-safe, as LivePlan. Knows no driver.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "hints/oversubscription/page_set.hpp"

namespace uvm::live {

class PeerPages {
 public:
  // The page leaves. Returns the device with room for it, where it is from now on; Page::kNoPeer:
  // none.
  int send(Page& page);
  // The page is no longer there, if it was.
  void came_back(Page& page);

  bool has_room() const;

  // So many pages may be on the device. Returns those that were there beyond that.
  std::vector<Page*> set_room(int device, std::size_t pages);

  // Pages that are on the device, or were there in this period or the one before.
  std::size_t pages_of(int device) const;
  void end_period();

 private:
  struct Peer {
    int device = Page::kNoPeer;
    std::size_t room = 0;
    std::size_t count = 0;             // pages that are there
    std::vector<Page*> visitors = {};  // and those that were there lately
  };

  Peer* peer_of(int device);

  std::vector<Peer> peers_;
  std::uint64_t period_ = 1;
};

}  // namespace uvm::live
