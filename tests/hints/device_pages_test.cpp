#include "hints/oversubscription/device_pages.hpp"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace uvm::live {
namespace {

struct DevicePagesTest : ::testing::Test {
  std::array<Page, 8> pages;
  DevicePages here;

  std::vector<bool> is_here() const {
    std::vector<bool> result;
    for (const Page& page : pages) result.push_back(here.contains(page));
    return result;
  }
};

TEST_F(DevicePagesTest, TheDriverTakesTheChunkOfThePageThatCameFirst) {
  for (const std::size_t each : {3, 1, 2}) here.add(pages[each]);
  here.remove(pages[1]);
  here.add(pages[1]);
  here.set_arriving(pages[3], true);
  here.add_by_driver(std::vector<Page*>{&pages[2], &pages[5], &pages[6]}, 3);
  EXPECT_EQ(is_here(), (std::vector<bool>{false, true, false, false, false, true, true, false}))
      << "pages 3 and 2 came first, though the kernel uses page 2";
  EXPECT_TRUE(pages[3].is_on_host && pages[2].is_on_host);
  EXPECT_TRUE(pages[5].is_uncertain && !pages[1].is_uncertain);
  EXPECT_EQ(here.arriving(), 0u);
}

TEST_F(DevicePagesTest, OfAKernelThatUsesMoreThanThereIsTheLastPagesStay) {
  here.add(pages[0]);
  std::vector<Page*> used;
  for (Page& page : pages) used.push_back(&page);
  here.add_by_driver(used, 3);
  EXPECT_EQ(is_here(), (std::vector<bool>{false, false, false, false, false, true, true, true}));
}

TEST_F(DevicePagesTest, ADeviceWithoutChunksIsNoError) {
  here.add_by_driver(std::vector<Page*>{&pages[0], &pages[1]}, 0);
  EXPECT_EQ(here.size(), 1u) << "a page that is used is somewhere on the device";
}

}  // namespace
}  // namespace uvm::live
