#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "tests/hints/live_program.hpp"

namespace uvm {
namespace {

using testing::LiveProgram;

constexpr std::uint8_t kReadOnce = live::kReads | live::kOnce;

// Runs one kernel for each page from 0 to `pages` - 1.
void circle(LiveProgram& program, std::size_t pages, std::uint8_t access) {
  for (std::size_t page = 0; page < pages; ++page) program.kernel({page}, access);
}

TEST(InPlacePagesTest, PagesThatDoNotFitAndAreReadOnceStayOnTheHostAndNothingMovesAnyMore) {
  LiveProgram program(12);
  for (int step = 0; step < 4; ++step) circle(program, 20, kReadOnce);
  EXPECT_EQ(program.record.in_place.size(), 8u);
  program.record.clear();
  const live::LiveFigures before = program.plan.figures();
  for (int step = 0; step < 10; ++step) circle(program, 20, kReadOnce);
  EXPECT_EQ(program.record.calls(), 0u);
  EXPECT_EQ(program.plan.figures().missing_pages, before.missing_pages);
  EXPECT_EQ(program.record.in_place.size(), 8u);
}

TEST(InPlacePagesTest, PagesThatAreReadAndWrittenOnceStayToo) {
  LiveProgram program(12);
  for (int step = 0; step < 4; ++step) circle(program, 20, LiveProgram::kBoth | live::kOnce);
  EXPECT_EQ(program.record.in_place.size(), 8u);
  program.record.clear();
  for (int step = 0; step < 10; ++step) circle(program, 20, LiveProgram::kBoth | live::kOnce);
  EXPECT_EQ(program.record.calls(), 0u);
}

TEST(InPlacePagesTest, PagesAreMovedOfWhichAKernelTouchesBytesMoreThanOnce) {
  for (const std::uint8_t access : {std::uint8_t{live::kReads}, LiveProgram::kBoth}) {
    LiveProgram program(12);
    for (int step = 0; step < 6; ++step) circle(program, 20, access);
    EXPECT_TRUE(program.record.in_place.empty());
  }
}

TEST(InPlacePagesTest, PagesAreMovedThatAreUsedAgainBeforeThoseThatWouldLeave) {
  for (const std::uint8_t access : {kReadOnce, std::uint8_t{LiveProgram::kBoth | live::kOnce}}) {
    LiveProgram program(12);
    for (int step = 0; step < 6; ++step) {
      for (std::size_t page = 0; page < 20; ++page) {
        program.kernel({page}, access);
        program.kernel({page}, access);
      }
    }
    EXPECT_TRUE(program.record.in_place.empty());
    EXPECT_GT(program.plan.figures().brought_pages, 0u);
  }
}

// Like weights: one kernel of a step needs each page on the device, three others read it once.
TEST(InPlacePagesTest, PagesThatOnlySomeKernelsReadOnceStayForThese) {
  LiveProgram program(12);
  const auto step = [&program] {
    circle(program, 20, live::kReads);
    for (int turn = 0; turn < 3; ++turn) circle(program, 20, kReadOnce);
  };
  for (int i = 0; i < 4; ++i) step();
  program.record.clear();
  const live::LiveFigures before = program.plan.figures();
  for (int i = 0; i < 10; ++i) step();
  EXPECT_LE(program.record.brought.size(), 100u) << "moved for each kernel they would be 320";
  EXPECT_EQ(program.plan.figures().missing_pages, before.missing_pages);
}

TEST(InPlacePagesTest, AKernelThatTouchesBytesMoreThanOnceBringsThePage) {
  for (const std::uint8_t access : {LiveProgram::kBoth, std::uint8_t{live::kReads}}) {
    LiveProgram program(12);
    for (int step = 0; step < 4; ++step) circle(program, 20, kReadOnce);
    ASSERT_EQ(program.record.in_place.size(), 8u);
    const PageNumber page = *program.record.in_place.begin();
    const std::size_t number = page - LiveProgram::page(0);
    program.record.clear();
    for (std::size_t each = 0; each <= number; ++each) program.kernel({each}, kReadOnce);
    program.kernel({number}, access);
    EXPECT_FALSE(program.record.in_place.contains(page));
    EXPECT_EQ(program.record.brought, std::vector<PageNumber>{page});
  }
}

TEST(InPlacePagesTest, ABlockThatIsAllocatedInAPageEndsItsStay) {
  LiveProgram program(12);
  for (int step = 0; step < 4; ++step) circle(program, 20, kReadOnce);
  ASSERT_FALSE(program.record.in_place.empty());
  const PageNumber page = *program.record.in_place.begin();
  const std::size_t number = page - LiveProgram::page(0);
  program.free(number);
  program.allocate(number);
  EXPECT_FALSE(program.record.in_place.contains(page));
  EXPECT_EQ(program.record.arrivals[page], live::Arrival::kCopied)
      << "kernels that are launched may still read the old bytes";
}

TEST(InPlacePagesTest, AKernelThatNeedsMoreThanThereIsUsesTheRestInPlace) {
  LiveProgram program(12);
  std::vector<std::size_t> state(20);
  std::iota(state.begin(), state.end(), 0);
  const auto step = [&] {
    program.kernel(state, LiveProgram::kBoth | live::kOnce);
    for (std::size_t page = 30; page < 50; ++page) program.kernel({page}, live::kReads);
  };
  for (int i = 0; i < 5; ++i) step();
  const live::LiveFigures before = program.plan.figures();
  for (int i = 0; i < 5; ++i) step();
  EXPECT_EQ(program.plan.figures().missing_pages, before.missing_pages);
  EXPECT_GE(program.record.in_place.size(), 8u);
}

TEST(InPlacePagesTest, AKernelThatNeedsMoreThanThereIsUsesTheRestInPlaceWithoutAKnownStep) {
  for (const std::uint8_t once : {live::kOnce, std::uint8_t{0}}) {
    LiveProgram program(12);
    std::vector<std::size_t> state(20);
    std::iota(state.begin(), state.end(), 0);
    for (const std::size_t page : state) program.kernel({page});
    ASSERT_FALSE(program.learner.predicts());
    const live::LiveFigures before = program.plan.figures();
    program.kernel(state, LiveProgram::kBoth | once);
    const bool stay = once != 0;
    EXPECT_EQ(program.record.in_place.size(), stay ? 8u : 0u) << "those that had left";
    EXPECT_EQ(program.plan.figures().missing_pages - before.missing_pages, stay ? 0u : 8u);
    program.kernel({0});
    EXPECT_FALSE(program.record.in_place.contains(LiveProgram::page(0)))
        << "the next kernel may touch its bytes more than once";
  }
}

TEST(InPlacePagesTest, AUseOfMoreThanTheDeviceHasIsLeftToTheDriver) {
  LiveProgram program(4);
  program.allocate(0, 8);
  for (int i = 0; i < 3; ++i)
    program.kernel_of({{LiveProgram::at(0), 8 * testing::kPage, live::kReads | live::kOnce}});
  EXPECT_TRUE(program.record.in_place.empty());
  EXPECT_TRUE(program.record.brought.empty()) << "the kernel may use little of the block";
}

TEST(InPlacePagesTest, NewPagesOfAKernelThatNeedsMoreThanThereIsComeToTheDevice) {
  LiveProgram program(4);
  program.kernel({0, 1, 2, 3, 4, 5}, LiveProgram::kBoth | live::kOnce);
  EXPECT_TRUE(program.record.in_place.empty()) << "a page that is nowhere needs no copy";
  EXPECT_EQ(program.record.brought.size(), 4u);
}

TEST(InPlacePagesTest, PagesOfTheSameKernelAreNotThoseThatWouldLeave) {
  LiveProgram program(12);
  const auto step = [&program] {
    for (std::size_t page = 0; page < 20; page += 2) program.kernel({page, page + 1}, kReadOnce);
  };
  for (int i = 0; i < 8; ++i) step();
  EXPECT_EQ(program.record.in_place.size(), 8u);
  program.record.clear();
  const live::LiveFigures before = program.plan.figures();
  for (int i = 0; i < 10; ++i) step();
  EXPECT_EQ(program.record.calls(), 0u);
  EXPECT_EQ(program.plan.figures().in_place_pages, before.in_place_pages);
}

TEST(InPlacePagesTest, NoPageStaysOnTheHostWhileAnotherDeviceHasRoom) {
  LiveProgram program(12);
  for (int step = 0; step < 4; ++step) circle(program, 20, kReadOnce);
  ASSERT_EQ(program.record.in_place.size(), 8u);
  program.set_peer_room(1, 9);
  for (int step = 0; step < 2; ++step) circle(program, 20, kReadOnce);
  EXPECT_TRUE(program.record.in_place.empty());
  EXPECT_EQ(program.record.on_peer.size(), 8u);
}

TEST(InPlacePagesTest, PagesComeBackWhenThereIsRoom) {
  LiveProgram program(12);
  for (int step = 0; step < 4; ++step) circle(program, 20, kReadOnce);
  ASSERT_FALSE(program.record.in_place.empty());
  program.plan.set_chunks(20);
  for (int step = 0; step < 2; ++step) circle(program, 20, kReadOnce);
  EXPECT_TRUE(program.record.in_place.empty());
}

TEST(InPlacePagesTest, ASmallBlockThatAKernelUsesInAPageEndsItsStay) {
  for (const bool is_logged : {true, false}) {
    LiveProgram program(12);
    for (int step = 0; step < 4; ++step) circle(program, 20, kReadOnce);
    ASSERT_FALSE(program.record.in_place.empty());
    const PageNumber page = *program.record.in_place.begin();
    const std::uintptr_t small = address_of(page);
    program.free(page - LiveProgram::page(0));
    program.small_extent = 1 << 10;
    std::vector<live::UseRange> uses = {{small, 64, live::kReads}};
    if (is_logged) uses.push_back({LiveProgram::at(1), testing::kPage, kReadOnce});
    program.record.clear();
    program.kernel_of(uses);
    EXPECT_FALSE(program.record.in_place.contains(page));
    EXPECT_EQ(std::ranges::count(program.record.brought, page), 1);
  }
}

TEST(InPlacePagesTest, NoOrderOfKernelsWritesBytesOfAPageInPlaceMoreThanOnce) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    LiveProgram program(10);
    for (int kernel = 0; kernel < 2000; ++kernel) {
      const bool strays = random() % 50 == 0;
      const std::size_t page = strays ? random() % 24 : static_cast<std::size_t>(kernel) % 24;
      const std::uint8_t access = strays && random() % 2 == 0 ? LiveProgram::kBoth : kReadOnce;
      program.kernel({page}, access);
      if ((access & live::kWrites) == 0) continue;
      EXPECT_FALSE(program.record.in_place.contains(LiveProgram::page(page)));
    }
  }
}

}  // namespace
}  // namespace uvm
