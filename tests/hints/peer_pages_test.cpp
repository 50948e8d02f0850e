#include "hints/oversubscription/peer_pages.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <set>

#include "tests/hints/live_program.hpp"

namespace uvm {
namespace {

using live::Page;
using live::PeerPages;
using testing::LiveProgram;

TEST(PeerPagesTest, PagesGoWhereThereIsRoomAndBackToWhereTheyWere) {
  PeerPages peers;
  std::array<Page, 4> pages;
  EXPECT_EQ(peers.send(pages[0]), Page::kNoPeer);
  peers.set_room(3, 1);
  peers.set_room(5, 2);
  EXPECT_EQ(peers.send(pages[0]), 3);
  EXPECT_EQ(peers.send(pages[1]), 5);
  EXPECT_EQ(peers.send(pages[2]), 5);
  EXPECT_EQ(peers.send(pages[3]), Page::kNoPeer);
  peers.came_back(pages[0]);
  peers.came_back(pages[1]);
  EXPECT_EQ(peers.send(pages[1]), 5) << "its chunk may still be there";
  EXPECT_EQ(peers.send(pages[3]), 3);
  EXPECT_EQ(peers.pages_of(3), 2u) << "one is there, one was";
}

TEST(PeerPagesTest, APageThatWasNotThereForAPeriodIsForgotten) {
  PeerPages peers;
  std::array<Page, 3> pages;
  peers.set_room(1, 3);
  for (Page& page : pages) peers.send(page);
  peers.came_back(pages[1]);
  peers.came_back(pages[2]);
  peers.end_period();
  EXPECT_EQ(peers.pages_of(1), 3u) << "each was sent in the period";
  peers.send(pages[1]);
  peers.came_back(pages[1]);
  peers.end_period();
  EXPECT_EQ(peers.pages_of(1), 2u);
  EXPECT_EQ(pages[2].peer, Page::kNoPeer);
}

// The model is a set of pages for each peer.
TEST(PeerPagesTest, NoOrderOfCallsSendsMorePagesThanThereIsRoomForOrForgetsOne) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    std::mt19937 random(seed);
    PeerPages peers;
    std::array<Page, 40> pages;
    std::map<int, std::size_t> room;
    std::map<int, std::set<Page*>> there;
    for (int call = 0; call < 500; ++call) {
      Page& page = pages[random() % pages.size()];
      const int device = 1 + static_cast<int>(random() % 3);
      const unsigned kind = random() % 16;
      if (kind == 0) {
        peers.end_period();
      } else if (kind < 4) {
        room[device] = random() % 16;
        const std::size_t before = there[device].size();
        const std::vector<Page*> leaving = peers.set_room(device, room[device]);
        EXPECT_EQ(leaving.size(), before - std::min(before, room[device]));
        for (Page* each : leaving) EXPECT_EQ(there[device].erase(each), 1u);
      } else if (page.is_on_peer) {
        peers.came_back(page);
        EXPECT_EQ(there[page.peer].erase(&page), 1u);
      } else if (const int peer = peers.send(page); peer != Page::kNoPeer) {
        there[peer].insert(&page);
      } else {
        for (const auto& [full, most] : room) EXPECT_EQ(there[full].size(), most);
      }
      for (const auto& [peer, those] : there) {
        EXPECT_LE(those.size(), room[peer]);
        EXPECT_LE(those.size(), peers.pages_of(peer));
        for (const Page* each : those) EXPECT_TRUE(each->is_on_peer && each->peer == peer);
      }
    }
  }
}

// Uses pages 0 to `pages` - 1 and back again.
void there_and_back(LiveProgram& program, std::size_t pages) {
  for (std::size_t page = 0; page < pages; ++page) program.kernel({page});
  for (std::size_t page = pages; page-- > 0;) program.kernel({page});
}

TEST(PeerPagesTest, PagesLeaveToAPeerAsFarAsItHasRoomAndComeBackFromIt) {
  LiveProgram program(8);
  program.set_peer_room(1, 3);
  for (int step = 0; step < 5; ++step) there_and_back(program, 12);
  program.record.clear();
  const live::LiveFigures before = program.plan.figures();
  for (int step = 0; step < 10; ++step) there_and_back(program, 12);
  const live::LiveFigures now = program.plan.figures();
  // With 12 pages and 8 chunks, 4 pages leave on each pass, at most 3 of them to the peer.
  EXPECT_EQ(now.evicted_pages - before.evicted_pages, 80u);
  EXPECT_EQ(now.pages_to_peers - before.pages_to_peers, 80 - program.record.evicted.size());
  EXPECT_GE(now.pages_to_peers - before.pages_to_peers, 30u);
  EXPECT_LE(program.record.on_peer.size(), 3u);
  EXPECT_TRUE(program.record.left_peer.empty());
}

TEST(PeerPagesTest, APeerThatNeedsItsMemoryGetsItAtOnceAndTheHostGetsTheNextPages) {
  LiveProgram program(8);
  program.set_peer_room(1, 8);
  for (int step = 0; step < 5; ++step) there_and_back(program, 12);
  ASSERT_FALSE(program.record.on_peer.empty());
  const std::size_t there = program.record.on_peer.size();
  program.set_peer_room(1, 0);
  EXPECT_TRUE(program.record.on_peer.empty());
  EXPECT_EQ(program.record.left_peer.size(), there);
  program.record.clear();
  for (int step = 0; step < 5; ++step) there_and_back(program, 12);
  EXPECT_TRUE(program.record.on_peer.empty());
  EXPECT_EQ(program.record.evicted.size(), 40u);
}

}  // namespace
}  // namespace uvm
