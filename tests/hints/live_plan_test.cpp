#include "hints/oversubscription/live_plan.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "tests/hints/live_program.hpp"
#include "tests/support/sanitized.hpp"

namespace uvm {
namespace {

using live::LiveFigures;
using live::UseLog;
using testing::LiveProgram;

// Uses pages 0 to `pages` - 1 and back again.
void there_and_back(LiveProgram& program, std::size_t pages) {
  for (std::size_t page = 0; page < pages; ++page) program.kernel({page});
  for (std::size_t page = pages; page-- > 0;) program.kernel({page});
}

TEST(LivePlanTest, EachPageIsAskedForOnceWhenAllFits) {
  LiveProgram program(12);
  there_and_back(program, 12);
  EXPECT_EQ(program.record.brought.size(), 12u) << "where pages are is not known at first";
  program.record.clear();
  for (int step = 0; step < 10; ++step) there_and_back(program, 12);
  EXPECT_TRUE(program.learner.predicts());
  EXPECT_EQ(program.record.calls(), 0u);
}

// Uses all pages in turn.
void around(LiveProgram& program, std::size_t pages) {
  for (std::size_t page = 0; page < pages; ++page) program.kernel({page});
}

TEST(LivePlanTest, PagesOnTheirWayHaveFreeChunksInAStepThatDoesNotFit) {
  constexpr std::size_t kChunks = policy::kSpareChunks * policy::kLeastChunksPerSpare;
  LiveProgram program(kChunks);
  for (int step = 0; step < 5; ++step) around(program, kChunks + 64);
  program.record.clear();
  program.record.free_chunks.clear();
  around(program, kChunks + 64);
  EXPECT_EQ(program.record.brought.size(), 64u + policy::kSpareChunks);
  for (const PageNumber page : program.record.brought)
    EXPECT_GE(program.record.free_chunks[page], policy::kSpareChunks - 1);

  LiveProgram fits(kChunks);
  for (int step = 0; step < 5; ++step) around(fits, kChunks);
  fits.record.clear();
  around(fits, kChunks);
  EXPECT_EQ(fits.record.calls(), 0u);
}

TEST(LivePlanTest, PagesComeAtTheirUseUntilTheStepIsKnown) {
  LiveProgram program(8);
  there_and_back(program, 12);
  EXPECT_FALSE(program.learner.predicts());
  EXPECT_EQ(program.record.brought.size(), 16u) << "12 at first, 4 on the way back";
  EXPECT_EQ(program.record.evicted.size(), 8u);
  EXPECT_EQ(program.plan.figures().missing_pages, 0u);
}

// On a device with 8 chunks.
void expect_that_pages_come_ahead(LiveProgram& program) {
  for (int step = 0; step < 4; ++step) there_and_back(program, 12);
  const LiveFigures before = program.plan.figures();
  program.record.clear();
  for (int step = 0; step < 10; ++step) there_and_back(program, 12);
  EXPECT_EQ(program.plan.figures().missing_pages, before.missing_pages);
  // Belady: with 12 pages and 8 chunks, 4 pages leave on each pass.
  EXPECT_EQ(program.record.brought.size(), 80u);
  EXPECT_EQ(program.record.evicted.size(), 80u);
  EXPECT_EQ(program.record.waited.size(), 80u);
}

TEST(LivePlanTest, PagesComeAheadOfTheirUseOnceTheStepIsKnown) {
  LiveProgram program(8);
  expect_that_pages_come_ahead(program);
}

// What the plan brings in ten steps of a program whose steps differ a little from each other.
struct Brought {
  std::size_t pages = 0;
  std::size_t late = 0;  // for the kernel at hand, not ahead of it
};

// Step number `step` is 48 pages there and back, changed by `change(step, &pages)`.
template <class Change>
Brought brought_in_changing_steps(Change change) {
  constexpr std::size_t kPages = 48;
  LiveProgram program(32);
  Brought brought;
  for (std::size_t step = 0; step < 16; ++step) {
    std::vector<std::size_t> pages;
    for (std::size_t page = 0; page < kPages; ++page) pages.push_back(page);
    for (std::size_t page = kPages; page-- > 0;) pages.push_back(page);
    change(step, &pages);
    if (step == 6) brought = {};
    for (const std::size_t page : pages) {
      program.record.brought.clear();
      program.kernel({page});
      brought.pages += program.record.brought.size();
      brought.late += static_cast<std::size_t>(std::ranges::count_if(
          program.record.brought,
          [&](PageNumber each) { return program.record.needs[each] <= program.log.newest(); }));
    }
  }
  EXPECT_TRUE(program.learner.predicts());
  EXPECT_EQ(program.learner.times_lost(), 0u);
  return brought;
}

TEST(LivePlanTest, AKernelThatDiffersInEachStepCostsLittleMoreThanItself) {
  using Pages = std::vector<std::size_t>;
  // Another place in each step, in no order that repeats.
  const auto place = [](std::size_t step) { return 7 + (7 * step * step + 13 * step) % 61; };
  const auto at = [&](Pages* pages, std::size_t step) {
    return pages->begin() + static_cast<std::ptrdiff_t>(place(step));
  };
  const Brought same = brought_in_changing_steps([](std::size_t, Pages*) {});
  ASSERT_EQ(same.pages, 10 * 2 * 16u) << "Belady's choice";
  ASSERT_EQ(same.late, 0u);
  const Brought extra = brought_in_changing_steps(
      [&](std::size_t step, Pages* pages) { pages->insert(at(pages, step), 100); });
  const Brought missing = brought_in_changing_steps(
      [&](std::size_t step, Pages* pages) { pages->erase(at(pages, step)); });
  const Brought swapped = brought_in_changing_steps([&](std::size_t step, Pages* pages) {
    std::iter_swap(at(pages, step), at(pages, step) + 1);
  });
  for (const Brought& each : {extra, missing, swapped}) EXPECT_LE(each.pages, same.pages + 10 * 3);
  EXPECT_LE(extra.late, 10 * 2u);
  EXPECT_LE(missing.late, 10 * 6u);
  EXPECT_LE(swapped.late, 10 * 11u);
}

// Trains some layers of a page each. Activations and gradients are new blocks in each step.
class TrainingProgram {
 public:
  TrainingProgram(std::size_t chunks, Policy policy) : program_(chunks, policy) {}

  // Returns the pages that are moved.
  std::uint64_t step() {
    const std::uint64_t before = program_.plan.moved_pages();
    for (std::size_t layer = 0; layer < kLayers; ++layer) {
      allocate(kActivation + layer);
      kernel({{kWeight + layer, live::kReads}, {kActivation + layer, live::kWrites}});
    }
    for (std::size_t layer = 0; layer < kLayers; ++layer) program_.free(kGradient + layer);
    for (std::size_t layer = kLayers; layer-- > 0;) {
      allocate(kGradient + layer);
      kernel({{kWeight + layer, live::kReads},
              {kActivation + layer, live::kReads},
              {kGradient + layer, live::kWrites}});
      program_.free(kActivation + layer);
    }
    for (std::size_t layer = 0; layer < kLayers; ++layer)
      kernel({{kMoment + layer, LiveProgram::kBoth}, {kGradient + layer, live::kReads}});
    for (std::size_t layer = 0; layer < kLayers; ++layer)
      kernel({{kWeight + layer, LiveProgram::kBoth}, {kMoment + layer, live::kReads}});
    return program_.plan.moved_pages() - before;
  }
  // Pages that came with their bytes, and were then allocated again before a kernel used them.
  std::size_t copied_in_vain() const { return copied_in_vain_; }

 private:
  static constexpr std::size_t kLayers = 16;
  static constexpr std::size_t kWeight = 0;
  static constexpr std::size_t kGradient = 20;
  static constexpr std::size_t kMoment = 40;
  static constexpr std::size_t kActivation = 60;

  void allocate(std::size_t page) {
    program_.allocate(page);
    note_arrivals();
    copied_in_vain_ += copied_.erase(LiveProgram::page(page));
  }
  void kernel(const std::vector<std::pair<std::size_t, std::uint8_t>>& uses) {
    std::vector<live::UseRange> ranges;
    for (const auto& [page, access] : uses)
      ranges.push_back({LiveProgram::at(page), testing::kPage, access});
    program_.kernel_of(ranges);
    note_arrivals();
    for (const auto& [page, access] : uses) copied_.erase(LiveProgram::page(page));
  }
  void note_arrivals() {
    for (const PageNumber page : program_.record.brought) {
      if (program_.record.arrivals[page] == live::Arrival::kCopied) copied_.insert(page);
    }
    program_.record.clear();
  }

  LiveProgram program_;
  std::set<PageNumber> copied_;
  std::size_t copied_in_vain_ = 0;
};

TEST(LivePlanTest, BytesThatAreFreedBeforeTheNextUseAreNotCopiedBack) {
  // Pages moved in a step, by the number of chunks.
  const std::map<std::size_t, std::uint64_t> most = {{20, 104}, {28, 72}, {32, 56}, {36, 44},
                                                     {40, 36},  {44, 28}, {48, 20}, {52, 12}};
  for (const auto& [chunks, pages] : most) {
    SCOPED_TRACE(chunks);
    TrainingProgram lru(chunks, Policy::kLru);
    TrainingProgram planned(chunks, Policy::kPlanned);
    for (int step = 0; step < 8; ++step) {
      lru.step();
      planned.step();
    }
    const std::size_t before = planned.copied_in_vain();
    for (int step = 0; step < 4; ++step) {
      const std::uint64_t moved = planned.step();
      EXPECT_LE(moved, lru.step());
      EXPECT_LE(moved, pages);
    }
    EXPECT_EQ(planned.copied_in_vain(), before);
  }
}

TEST(LivePlanTest, MovesThatNobodyNeedsSoonGoTogether) {
  constexpr std::size_t kPages = 96;
  std::map<std::size_t, std::vector<std::size_t>> bursts;  // pages that came before one kernel
  for (const std::size_t round : {1, 4}) {
    LiveProgram program(64);
    program.plan.set_round(round);
    for (int step = 0; step < 4; ++step) there_and_back(program, kPages);
    const LiveFigures before = program.plan.figures();
    program.record.clear();
    std::size_t brought = 0;
    const auto kernel = [&](std::size_t page) {
      program.kernel({page});
      const std::size_t now = program.record.brought.size();
      if (now > brought) bursts[round].push_back(now - brought);
      brought = now;
    };
    for (std::size_t page = 0; page < kPages; ++page) kernel(page);
    for (std::size_t page = kPages; page-- > 0;) kernel(page);
    EXPECT_EQ(brought, 64u) << "32 on each pass, as with enough calls";
    EXPECT_EQ(program.plan.figures().missing_pages, before.missing_pages);
    EXPECT_EQ(program.record.waited.size(), 64u);
  }
  EXPECT_EQ(bursts[4], std::vector<std::size_t>(16, 4));
  EXPECT_GT(bursts[1].size(), 48u);
}

TEST(LivePlanTest, PagesOfTheNextKernelAreAGroupOfTheirOwn) {
  LiveProgram program(8);
  for (int step = 0; step < 4; ++step) there_and_back(program, 12);
  program.record.clear();
  program.record.groups.clear();
  program.kernel({40});
  ASSERT_FALSE(program.record.groups.empty());
  EXPECT_EQ(program.record.groups[0], 2u) << "a page leaves, and page 40 comes";
}

TEST(LivePlanTest, OfABlockTheUsedPagesMove) {
  LiveProgram program(4, Policy::kLru);
  program.log.allocated(LiveProgram::at(0), 12 * testing::kPage);
  program.kernel_of({{LiveProgram::at(2) + 100, 2 * testing::kPage - 200}});
  EXPECT_EQ(program.record.brought,
            (std::vector<PageNumber>{LiveProgram::page(2), LiveProgram::page(3)}));
  program.kernel_of({{LiveProgram::at(10), live::kToEndOfBlock}});
  EXPECT_EQ(program.record.brought.size(), 4u);
  EXPECT_EQ(program.record.brought.back(), LiveProgram::page(11));
  EXPECT_EQ(program.plan.figures().missing_pages, 0u);
}

TEST(LivePlanTest, AStepThatGoesThroughOneBlockIsServedAsOneOfManyBlocks) {
  LiveProgram program(8);
  program.log.allocated(LiveProgram::at(0), 12 * testing::kPage);
  expect_that_pages_come_ahead(program);
}

TEST(LivePlanTest, LruMovesMoreThanThePlanForTheSameStep) {
  // In a circle, the page that was used longest ago is needed next.
  std::map<Policy, std::size_t> brought;
  for (const Policy policy : {Policy::kLru, Policy::kPlanned}) {
    LiveProgram program(8, policy);
    auto circle = [&] {
      for (std::size_t page = 0; page < 12; ++page) program.kernel({page});
    };
    for (int step = 0; step < 4; ++step) circle();
    program.record.clear();
    for (int step = 0; step < 10; ++step) circle();
    brought[policy] = program.record.brought.size();
  }
  EXPECT_EQ(brought[Policy::kLru], 120u);
  EXPECT_LE(brought[Policy::kPlanned], 50u);
}

TEST(LivePlanTest, NoPageLeavesThatIsNeededEarlierThanTheOneThatComes) {
  LiveProgram program(8);
  for (int step = 0; step < 4; ++step) there_and_back(program, 12);
  program.record.clear();
  // Pages 8 to 11 and back to 8 come next, so the pages that leave are the first four.
  for (std::size_t page = 0; page < 8; ++page) program.kernel({page});
  for (const PageNumber page : program.record.evicted) EXPECT_LT(page, LiveProgram::page(8));
}

TEST(LivePlanTest, AChangedStepIsServedAsBeforeItWasKnownAndLearnedAgain) {
  LiveProgram program(8);
  for (int step = 0; step < 4; ++step) there_and_back(program, 12);
  for (std::size_t page = 20; page < 44; ++page) program.kernel({page, page + 1});
  EXPECT_FALSE(program.learner.predicts());
  program.record.clear();
  for (std::size_t page = 50; page < 80; ++page) program.kernel({page, page + 1, page + 2});
  EXPECT_EQ(program.record.brought.size(), 32u) << "each page once";
  for (int step = 0; step < 4; ++step) there_and_back(program, 12);
  EXPECT_TRUE(program.learner.predicts());
  const LiveFigures before = program.plan.figures();
  there_and_back(program, 12);
  EXPECT_EQ(program.plan.figures().missing_pages, before.missing_pages);
  EXPECT_GT(program.plan.figures().brought_pages, before.brought_pages);
}

TEST(LivePlanTest, StepsThatNeverRepeatAreServedAsByLru) {
  std::map<Policy, std::vector<PageNumber>> evicted;
  for (const Policy policy : {Policy::kLru, Policy::kAuto}) {
    LiveProgram program(8, policy);
    std::mt19937 random(1);
    for (int kernel = 0; kernel < 5000; ++kernel)
      program.kernel({random() % 40, 40 + random() % 40});
    evicted[policy] = program.record.evicted;
  }
  EXPECT_GT(evicted[Policy::kLru].size(), 5000u);
  EXPECT_EQ(evicted[Policy::kAuto], evicted[Policy::kLru]);
}

TEST(LivePlanTest, TheMovesOfLruAreCountedAsLruMakesThem) {
  LiveProgram program(8, Policy::kLru);
  std::mt19937 random(2);
  std::set<std::size_t> blocks;
  for (int kernel = 0; kernel < 5000; ++kernel) {
    const std::size_t page = random() % 24;
    if (blocks.insert(page).second) program.allocate(page);
    program.kernel({page, 30 + random() % 10});
    if (random() % 8 == 0) {
      program.free(page);
      blocks.erase(page);
    }
  }
  EXPECT_GT(program.plan.moved_pages(), 5000u);
  EXPECT_NEAR(static_cast<double>(program.plan.moved_by_lru()),
              static_cast<double>(program.plan.moved_pages()),
              static_cast<double>(program.plan.moved_pages()) / 100)
      << "pages of freed blocks may leave in another order";
}

// A program of loops, each over other pages in an order of its own, that ends each loop at any
// place and goes on with another one or the one before.
std::uint64_t run_loops(LiveProgram& program, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::vector<std::size_t>> loops(3);
  for (auto& loop : loops) {
    const std::size_t pages = 6 + random() % 30;
    for (std::size_t i = 0; i < 20 + random() % 60; ++i) loop.push_back(random() % pages);
  }
  std::uint64_t kernels = 0;
  while (kernels < 8000) {
    const auto& loop = loops[random() % loops.size()];
    const std::size_t length = random() % (20 * loop.size());
    for (std::size_t i = 0; i < length; ++i) program.kernel({loop[i % loop.size()]});
    kernels += length;
  }
  return program.plan.moved_pages();
}

TEST(LivePlanTest, AutoMovesLittleMoreThanLruWhateverTheProgramDoes) {
  std::uint64_t all_by_lru = 0;
  std::uint64_t all = 0;
  for (unsigned seed = 0; seed < 15; ++seed) {
    LiveProgram by_lru(16, Policy::kLru);
    LiveProgram by_auto(16, Policy::kAuto);
    const std::uint64_t moved_by_lru = run_loops(by_lru, seed);
    const std::uint64_t moved = run_loops(by_auto, seed);
    EXPECT_LE(static_cast<double>(moved), 1.02 * static_cast<double>(moved_by_lru) + 8 * 16)
        << seed;
    all_by_lru += moved_by_lru;
    all += moved;
  }
  EXPECT_LT(all, all_by_lru);
}

TEST(LivePlanTest, ADeviceThatShrinksKeepsNoMorePagesThanItHas) {
  LiveProgram program(10);
  for (int step = 0; step < 4; ++step) there_and_back(program, 12);
  program.plan.set_chunks(5);
  for (int step = 0; step < 4; ++step) there_and_back(program, 12);
  EXPECT_LE(program.plan.pages_here(), 5u);
  const LiveFigures before = program.plan.figures();
  there_and_back(program, 12);
  EXPECT_EQ(program.plan.figures().missing_pages, before.missing_pages);
}

TEST(LivePlanTest, AFreePageIsDiscardedBeforeAPageInUseIsCopied) {
  LiveProgram program(8, Policy::kLru);
  for (std::size_t page = 0; page < 8; ++page) {
    program.allocate(page);
    program.kernel({page});
  }
  program.free(5);
  program.record.clear();
  program.kernel({20});
  EXPECT_EQ(program.record.discarded, std::vector<PageNumber>{LiveProgram::page(5)});
  EXPECT_TRUE(program.record.evicted.empty());
}

TEST(LivePlanTest, AFreePageThatCannotBeDiscardedIsCopied) {
  LiveProgram program(8, Policy::kLru);
  for (std::size_t page = 0; page < 8; ++page) {
    program.allocate(page);
    program.kernel({page});
  }
  program.free(5);
  program.record.clear();
  program.record.discards = false;
  program.kernel({20});
  EXPECT_EQ(program.record.evicted, std::vector<PageNumber>{LiveProgram::page(5)});
}

TEST(LivePlanTest, OfAKernelThatNeedsMoreThanTheDeviceHasThePagesComeThatItReads) {
  LiveProgram program(4, Policy::kLru);
  program.kernel({6, 7});
  program.record.clear();
  const std::vector<live::UseRange> uses = {{LiveProgram::at(0), testing::kPage, live::kWrites},
                                            {LiveProgram::at(1), testing::kPage, live::kWrites},
                                            {LiveProgram::at(2), testing::kPage, live::kReads},
                                            {LiveProgram::at(3), testing::kPage, live::kReads},
                                            {LiveProgram::at(4), testing::kPage, live::kReads}};
  program.kernel_of(uses);
  const PageNumber first = LiveProgram::page(0);
  EXPECT_EQ(program.record.brought,
            (std::vector<PageNumber>{first + 2, first + 3, first + 4, first}));
  EXPECT_EQ(program.record.evicted, (std::vector<PageNumber>{first + 6, first + 7}));
  EXPECT_EQ(program.plan.figures().missing_pages, 1u);
  EXPECT_EQ(program.plan.pages_here(), 4u) << "page 1 has the chunk of page 2, which came first";
}

TEST(LivePlanTest, APageThatTheDriverMayHaveEvictedComesAgainWithoutAVictim) {
  LiveProgram program(4, Policy::kLru);
  program.kernel({0, 1, 2, 3, 4, 5});
  program.record.clear();
  program.kernel({5});
  EXPECT_EQ(program.record.brought, std::vector<PageNumber>{LiveProgram::page(5)});
  EXPECT_TRUE(program.record.evicted.empty());
  EXPECT_EQ(program.record.held, 1u) << "the kernel before evicts it again, if it comes earlier";
  program.record.clear();
  program.kernel({5});
  EXPECT_EQ(program.record.calls(), 0u);
}

TEST(LivePlanTest, AUseOfMoreThanTheDeviceHasIsLeftToTheDriver) {
  LiveProgram program(4, Policy::kLru);
  program.allocate(0, 5);
  program.kernel_of({{LiveProgram::at(0), 5 * testing::kPage}});
  EXPECT_EQ(program.record.calls(), 0u) << "the kernel may use little of it";
  EXPECT_EQ(program.plan.figures().missing_pages, 5u);
}

TEST(LivePlanTest, ALargeNewBlockTakesNoChunksThatItsKernelNeedsForWhatItReads) {
  LiveProgram program(8, Policy::kLru);
  for (std::size_t page = 0; page < 8; ++page) program.kernel({page});
  program.record.clear();
  program.allocate(20, 2);
  EXPECT_EQ(program.record.evicted.size(), 2u);
  program.record.clear();
  program.allocate(30, 3);
  EXPECT_EQ(program.record.calls(), 0u);
}

TEST(LivePlanTest, ANewBlockCountsAmongThePagesThatAKernelNeeds) {
  LiveProgram program(4, Policy::kLru);
  program.allocate(0, 3);
  program.record.clear();
  program.kernel({0, 1, 2, 10, 11});
  EXPECT_EQ(program.plan.figures().missing_pages, 1u) << "five pages, of a device with four";
}

TEST(LivePlanTest, PagesOfKernelsThatUseSmallBlocksAloneCount) {
  LiveProgram program(4, Policy::kLru);
  program.small_extent = 1 << 10;
  program.kernel({9});
  program.small_extent = 0;
  EXPECT_EQ(program.record.brought, std::vector<PageNumber>{LiveProgram::page(9)});
  program.record.holds_small_blocks = {LiveProgram::page(9)};
  program.kernel({0});
  program.kernel({1, 2, 3});
  EXPECT_EQ(program.record.evicted, std::vector<PageNumber>{LiveProgram::page(0)})
      << "of five pages in four chunks";
}

TEST(LivePlanTest, APageOfSmallBlocksStaysForAStepAfterTheirLastUse) {
  LiveProgram program(8, Policy::kPlanned);
  const PageNumber small = LiveProgram::page(40);
  program.record.holds_small_blocks = {small};
  const auto step = [&] {
    program.small_extent = 1 << 10;
    program.kernel({40});
    program.small_extent = 0;
    there_and_back(program, 12);
  };
  for (int i = 0; i < 6; ++i) step();
  const LiveFigures before = program.plan.figures();
  program.record.clear();
  for (int i = 0; i < 10; ++i) step();
  // With 12 pages and the 7 remaining chunks, 5 pages leave on each pass.
  EXPECT_EQ(program.record.brought.size(), 100u);
  EXPECT_EQ(program.plan.figures().missing_pages, before.missing_pages);
}

TEST(LivePlanTest, APageLeavesAfterTheKernelThatUsedItLast) {
  LiveProgram program(4, Policy::kLru);
  for (const std::size_t page : {0u, 1u, 0u, 2u, 3u, 4u, 5u}) program.kernel({page});
  const auto at = [](std::size_t page) { return LiveProgram::page(page); };
  EXPECT_EQ(program.record.last_uses,
            (std::map<PageNumber, live::KernelNumber>{{at(1), 2}, {at(0), 3}}));
}

struct FreedPageTest : ::testing::Test {
  static constexpr PageNumber kNumber{16};  // of page 0
  LiveProgram program{8, Policy::kLru};

  // Page 0 has a block and is on the host.
  FreedPageTest() {
    for (std::size_t page = 0; page < 8; ++page) {
      program.allocate(page);
      program.kernel({page});
    }
    program.kernel({20});
    EXPECT_EQ(program.record.evicted, std::vector<PageNumber>{kNumber});
  }
};

TEST_F(FreedPageTest, OldBytesOnTheHostAreGivenUpAndNotCopiedForANewBlock) {
  program.free(0);
  EXPECT_TRUE(program.record.discarded.empty());
  program.kernel({20});
  EXPECT_EQ(program.record.discarded, std::vector<PageNumber>{kNumber});
  EXPECT_EQ(program.record.freed_at[kNumber], 9u) << "kernels so far when it was freed";
  program.allocate(0);
  EXPECT_EQ(program.record.arrivals[kNumber], live::Arrival::kNew);
}

TEST_F(FreedPageTest, OldBytesThatAreStillThereAreDroppedWhenTheBlockIsAllocated) {
  program.record.discards = false;
  program.free(0);
  program.kernel({20});
  program.allocate(0);
  EXPECT_EQ(program.record.arrivals[kNumber], live::Arrival::kDropped);
}

TEST_F(FreedPageTest, BytesOfABlockInUseAreCopied) {
  program.kernel({0});
  EXPECT_EQ(program.record.arrivals[kNumber], live::Arrival::kCopied);
  EXPECT_TRUE(program.record.discarded.empty());
}

TEST_F(FreedPageTest, ANewBlockThatSharesThePageLeavesItsBytes) {
  program.allocate_bytes(LiveProgram::at(0) + testing::kPage / 2, testing::kPage);
  EXPECT_EQ(program.record.arrivals[kNumber], live::Arrival::kCopied);
}

TEST(LivePlanTest, APageWithBlocksThatAreTooSmallForTheLogStays) {
  LiveProgram program(8, Policy::kLru);
  for (std::size_t page = 0; page < 8; ++page) {
    program.allocate(page);
    program.kernel({page});
  }
  program.free(5);
  const PageNumber small = LiveProgram::page(5);
  program.record.holds_small_blocks = {small};
  program.kernel({20});
  EXPECT_TRUE(program.record.discarded.empty());
  EXPECT_EQ(program.record.evicted, std::vector<PageNumber>{LiveProgram::page(0)});
}

TEST(LivePlanTest, EveryPageLeavesADeviceThatIsAnotherProgramsForAWhile) {
  LiveProgram program(8, Policy::kLru);
  for (std::size_t page = 0; page < 4; ++page) {
    program.allocate(page);
    program.kernel({page});
  }
  program.free(2);
  program.free(3);
  program.record.holds_small_blocks = {LiveProgram::page(3)};
  program.leave_device();
  EXPECT_EQ(program.plan.pages_here(), 0u);
  EXPECT_EQ(program.record.discarded.size(), 1u);
  EXPECT_EQ(program.record.evicted.size(), 3u) << "with the page of small blocks";
}

// Ten parameters that stay, and a temporary block for each, at the same address in every step.
struct TemporaryBlocksTest : ::testing::Test {
  LiveProgram program{10};

  void step() {
    for (std::size_t k = 0; k < 10; ++k) {
      const std::size_t temporary = 20 + k % 3;
      program.allocate(temporary);
      program.kernel({k, temporary});
      program.kernel({temporary});
      program.free(temporary);
    }
  }
};

TEST_F(TemporaryBlocksTest, PagesComeBeforeTheBlockIsAllocated) {
  for (int count = 0; count < 6; ++count) step();
  ASSERT_TRUE(program.learner.predicts());
  std::size_t late = 0;
  for (std::size_t kernel = 0; kernel < 30; ++kernel) {
    const std::size_t temporary = 20 + kernel % 10 % 3;
    program.record.clear();
    program.allocate(temporary);
    late += program.record.brought.size();
    program.kernel({kernel % 10, temporary});
    program.kernel({temporary});
    program.free(temporary);
  }
  EXPECT_LE(late, 6u) << "of 30; more pages on their way than there are credits for";
}

TEST_F(TemporaryBlocksTest, NoPageOfAParameterIsCopiedWhereTemporaryOnesWillBeFree) {
  // Ten parameters and one temporary block at a time need at least 11 chunks; there are 10.
  for (int count = 0; count < 6; ++count) step();
  program.record.clear();
  for (int count = 0; count < 10; ++count) step();
  EXPECT_LE(program.record.evicted.size(), 40u) << "Belady: two a step, or a few more";
  for (const PageNumber page : program.record.evicted)
    EXPECT_LT(page, LiveProgram::page(20)) << "nobody reads a temporary block again";
}

TEST(LivePlanTest, PagesThatTheStepOnlyReadsLeaveWithoutACopyOnceTheyHaveComeForIt) {
  LiveProgram program(8);
  const auto step = [&] {
    for (std::size_t page = 0; page < 12; ++page) program.kernel({page}, live::kReads);
  };
  for (int i = 0; i < 30; ++i) step();
  EXPECT_EQ(program.record.copied.size(), 12u) << "each has left once";
  program.record.clear();
  for (int i = 0; i < 10; ++i) step();
  EXPECT_TRUE(program.record.evicted.empty());
  EXPECT_GE(program.record.dropped.size(), 40u);
  program.kernel({3}, live::kWrites);
  EXPECT_EQ(program.record.copied.size(), 11u) << "a page that is written keeps no copy";
  program.allocate(5);
  EXPECT_EQ(program.record.copied.size(), 10u) << "nor a page in which a block is allocated";
}

TEST(LivePlanTest, PagesThatTheStepWritesKeepNoCopy) {
  LiveProgram program(8);
  for (int step = 0; step < 8; ++step) there_and_back(program, 12);
  EXPECT_TRUE(program.record.copied.empty());
  EXPECT_TRUE(program.record.dropped.empty());
}

TEST(LivePlanTest, PagesOfAGraphComeBeforeItThoughNoStepIsKnown) {
  LiveProgram program(4);
  program.kernel({0, 1, 2, 3});
  program.record.clear();
  program.graph({2, 3, 4, 5});
  EXPECT_FALSE(program.learner.predicts());
  const PageNumber first = LiveProgram::page(0);
  EXPECT_EQ(program.record.brought, (std::vector<PageNumber>{first + 4, first + 5}));
  EXPECT_EQ(program.record.evicted, (std::vector<PageNumber>{first, first + 1}));
  EXPECT_EQ(program.record.waited, program.record.brought);
  EXPECT_EQ(program.record.held, 0u);
}

TEST(LivePlanTest, OfAGraphThatNeedsMoreThanTheDeviceHasThePagesOfItsFirstKernelsCome) {
  LiveProgram program(4);
  const PageNumber first = LiveProgram::page(0);
  program.graph({5, 4, 3, 2, 1, 0});
  EXPECT_EQ(program.record.brought,
            (std::vector<PageNumber>{first + 5, first + 4, first + 3, first + 2}));
  EXPECT_EQ(program.record.waited, program.record.brought);
  EXPECT_TRUE(program.record.evicted.empty());
  program.record.clear();
  program.graph({5, 4, 3, 2, 1, 0});
  EXPECT_EQ(program.record.brought, (std::vector<PageNumber>{first + 5, first + 4}))
      << "the driver has taken their chunks for pages 1 and 0";
  EXPECT_EQ(program.record.evicted.size(), 2u);
}

// Whatever the order of events, no page of the current kernel leaves, or stays on the host if the
// kernel touches its bytes more than once. No page with a live block is discarded. A kernel that
// uses a requested page waits for that page.
TEST(LivePlanTest, APageThatTheDriverHasEvictedIsBroughtAgain) {
  LiveProgram program(4);
  program.kernel({0, 1});
  program.kernel({2});
  const auto comparison = program.plan.compare(LiveProgram::page(0), {true, false, true, true});
  ASSERT_EQ(comparison.differences.size(), 1U);
  EXPECT_EQ(comparison.differences[0].page, LiveProgram::page(1));
  EXPECT_EQ(comparison.expected, 3U);
  EXPECT_EQ(comparison.found, 2U) << "page 3 is unknown to the plan";
  program.plan.correct(comparison.differences);
  EXPECT_EQ(program.plan.pages_here(), 2U);
  EXPECT_EQ(program.plan.figures().wrong_pages, 1U);
  program.record.clear();
  program.kernel({1});
  EXPECT_EQ(program.record.brought, std::vector{LiveProgram::page(1)});
}

TEST(LivePlanTest, APageThatIsStillOnTheDeviceIsNotBroughtAgain) {
  LiveProgram program(2, Policy::kLru);
  program.kernel({0});
  program.kernel({1});
  program.kernel({2});
  ASSERT_EQ(program.record.evicted, std::vector{LiveProgram::page(0)});
  program.plan.correct(program.plan.compare(LiveProgram::page(0), {true, false}).differences);
  program.record.clear();
  program.kernel({0});
  EXPECT_TRUE(program.record.brought.empty());
}

TEST(LivePlanTest, SurplusPagesLeaveADeviceThatHasShrunk) {
  LiveProgram program(4);
  for (std::size_t page = 0; page < 4; ++page) program.kernel({page});
  program.plan.set_chunks(2);
  EXPECT_TRUE(program.record.evicted.empty()) << "not before the next kernel";
  program.kernel({3});
  EXPECT_EQ(program.plan.pages_here(), 2U);
  EXPECT_EQ(std::ranges::count(program.record.evicted, LiveProgram::page(3)), 0);
}

TEST(LivePlanTest, NoOrderOfEventsMovesMemoryThatAKernelAtHandUses) {
  for (int seed = 0; seed < testing::steps(12, 3); ++seed) {
    std::mt19937 random(seed);
    const Policy policies[] = {Policy::kAuto, Policy::kPlanned, Policy::kLru};
    LiveProgram program(4 + random() % 12, policies[seed % 3]);
    std::set<std::size_t> live;
    const std::size_t step = 10 + random() % 30;
    std::vector<std::vector<std::size_t>> kernels;
    const std::uint8_t accesses[] = {LiveProgram::kBoth, live::kReads | live::kOnce,
                                     LiveProgram::kBoth | live::kOnce, live::kReads};
    for (std::size_t i = 0; i < step; ++i) kernels.push_back({random() % 24, random() % 24});
    for (int event = 0; event < testing::steps(1500, 500); ++event) {
      const std::size_t what = random() % 100;
      program.record.clear();
      if (what < 2) {
        const std::size_t page = 30 + random() % 20;
        if (live.contains(page)) {
          program.free(page);
          live.erase(page);
        } else {
          program.allocate(page);
          live.insert(page);
        }
        continue;
      }
      if (what == 2) program.plan.set_chunks(3 + random() % 14);
      std::vector<std::size_t> pages =
          what < 8 ? std::vector{random() % 24, random() % 24} : kernels[event % step];
      if (what < 30 && !live.empty()) pages.push_back(*live.begin());
      if (what == 3) {
        for (std::size_t each = 0; each < 18; ++each) pages.push_back(each);
      }
      const std::uint8_t access = accesses[what == 4 ? random() % 4 : event % step % 4];
      program.kernel(pages, access);
      const bool is_too_large = what == 3 && program.plan.chunks() < 20;
      for (const std::size_t used : pages) {
        const PageNumber page = LiveProgram::page(used);
        EXPECT_FALSE(program.record.arriving.contains(page)) << "seed " << seed;
        if (is_too_large) continue;
        EXPECT_EQ(std::ranges::count(program.record.evicted, page), 0) << "seed " << seed;
        EXPECT_TRUE((access & live::kOnce) != 0 || !program.record.in_place.contains(page))
            << "seed " << seed;
      }
      for (const PageNumber page : program.record.discarded)
        EXPECT_TRUE(program.log.blocks_in_page(page).empty()) << "seed " << seed;
      for (const PageNumber page : program.record.in_place)
        EXPECT_FALSE(program.record.arriving.contains(page)) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace uvm
