#include "hints/oversubscription/step_learner.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/hints/live_program.hpp"

namespace uvm::live {
namespace {

using testing::kPage;

struct StepLearnerTest : ::testing::Test {
  UseLog log{[](std::uintptr_t) { return BlockExtent{}; }};
  StepLearner learner{log};

  static std::uintptr_t at(std::size_t page) { return (page + 16) * kPage; }
  RecordId allocate(std::size_t page, std::size_t size_bytes = kPage) {
    return log.allocated(at(page), size_bytes);
  }
  void kernel(const std::vector<std::size_t>& pages) {
    std::vector<UseRange> uses;
    for (const std::size_t page : pages) uses.push_back({.address = at(page), .size_bytes = 1});
    log.add_kernel(uses);
    learner.kernel_added();
  }
  // Returns the addresses of the pages that the learner expects.
  std::vector<std::uintptr_t> coming(std::uint64_t kernels_ahead) const {
    std::vector<std::uintptr_t> pages;
    learner.each_coming_page(
        log.newest() + kernels_ahead,
        [&](PageNumber page, std::uint8_t, bool) { pages.push_back(address_of(page)); });
    return pages;
  }
  // Runs kernels, and returns how many of them were not predicted right.
  std::size_t wrong_ = 0;
  void predicted_kernel(const std::vector<std::size_t>& pages) {
    std::vector<std::uintptr_t> addresses;
    for (const std::size_t page : pages) addresses.push_back(at(page));
    if (!learner.predicts() || coming(1) != addresses) ++wrong_;
    kernel(pages);
  }
  template <class Run>
  std::size_t wrong_in(Run run) {
    wrong_ = 0;
    run();
    return wrong_;
  }
  // Of the block's first page.
  std::optional<KernelNumber> next_use(RecordId id) const {
    return learner.next_use(id, page_of(log.record(id).extent.address), log.newest());
  }
};

TEST_F(StepLearnerTest, ARepeatedStepIsFoundAndItsNextBlocksAreKnown) {
  std::vector<RecordId> blocks;
  for (std::size_t page = 0; page < 12; ++page) blocks.push_back(allocate(page));
  for (int step = 0; step < 3; ++step)
    for (std::size_t page = 0; page < 12; ++page) kernel({page});
  ASSERT_TRUE(learner.predicts());
  EXPECT_EQ(learner.step_kernels(), 12u);
  EXPECT_EQ(coming(1), std::vector<std::uintptr_t>{at(0)});
  EXPECT_EQ(coming(12), std::vector<std::uintptr_t>{at(11)});
  EXPECT_EQ(next_use(blocks[3]), log.newest() + 4);
  EXPECT_EQ(next_use(blocks[11]), log.newest() + 12);
}

TEST_F(StepLearnerTest, TemporaryBlocksMayLieElsewhereInEachStep) {
  for (std::size_t page = 0; page < 12; ++page) allocate(page);
  for (std::size_t step = 0; step < 4; ++step) {
    for (std::size_t layer = 0; layer < 12; ++layer) {
      allocate(100 + 50 * step + layer);
      kernel({layer, 100 + 50 * step + layer});
    }
    for (std::size_t layer = 12; layer-- > 0;) {
      kernel({layer, 100 + 50 * step + layer});
      log.freed(at(100 + 50 * step + layer));
    }
  }
  ASSERT_TRUE(learner.predicts());
  EXPECT_EQ(learner.step_kernels(), 24u);
  EXPECT_EQ(learner.times_lost(), 0u);
  allocate(900);
  kernel({0, 900});
  // The last kernel of the step uses this step's block, at its new address.
  EXPECT_EQ(coming(23), (std::vector<std::uintptr_t>{at(0), at(900)}));
  // The next block is not allocated yet, so it is expected at its address in the step before.
  EXPECT_EQ(coming(1), (std::vector<std::uintptr_t>{at(1), at(251)}));
}

TEST_F(StepLearnerTest, AStepMayReplaceAllOfItsBlocks) {
  // Like `values[k] = f(values[k])` for 12 values: no block has the same role in two steps.
  std::vector<std::size_t> place(12);
  std::size_t next = 0;
  for (std::size_t& page : place) allocate(page = next++);
  const auto replace = [&](std::size_t k) {
    allocate(next);
    kernel({place[k], next});
    log.freed(at(place[k]));
    place[k] = next++;
  };
  for (int step = 0; step < 10; ++step)
    for (std::size_t k = 0; k < 12; ++k) replace(k);
  ASSERT_TRUE(learner.predicts());
  EXPECT_EQ(learner.step_kernels(), 12u);
  EXPECT_EQ(learner.times_lost(), 0u);
  ASSERT_FALSE(coming(5).empty());
  EXPECT_EQ(coming(5)[0], at(place[4]));
  EXPECT_EQ(next_use(log.blocks_in_page(PageNumber{place[4] + 16})[0]), log.newest() + 5);
}

TEST_F(StepLearnerTest, APartThatRepeatsWithinAStepIsNotTheStep) {
  // Three micro-batches, then an optimizer.
  for (std::size_t page = 0; page < 100; ++page) allocate(page);
  const auto step = [this] {
    for (int part = 0; part < 3; ++part)
      for (std::size_t page = 0; page < 40; ++page) kernel({page});
    for (std::size_t page = 50; page < 100; ++page) kernel({page});
  };
  for (int i = 0; i < 6; ++i) step();
  const std::uint64_t lost = learner.times_lost();
  for (int i = 0; i < 10; ++i) {
    step();
    EXPECT_EQ(learner.step_kernels(), 3 * 40u + 50u);
  }
  EXPECT_EQ(learner.times_lost(), lost);
  EXPECT_LE(lost, 3u);
  EXPECT_EQ(coming(3 * 40 + 1), std::vector<std::uintptr_t>{at(50)});
}

TEST_F(StepLearnerTest, TwoNetworksThatTrainInTurnAreOneStep) {
  for (std::size_t page = 0; page < 100; ++page) allocate(page);
  const auto train = [this](std::size_t first, std::size_t kernels) {
    for (int pass = 0; pass < 2; ++pass)
      for (std::size_t page = first; page < first + kernels; ++page) kernel({page});
  };
  const auto turn = [&] {
    for (int i = 0; i < 2; ++i) train(0, 40);
    for (int i = 0; i < 2; ++i) train(50, 40);
  };
  for (int i = 0; i < 8; ++i) turn();
  const std::uint64_t lost = learner.times_lost();
  for (int i = 0; i < 8; ++i) turn();
  EXPECT_EQ(learner.step_kernels(), 320u);
  EXPECT_EQ(learner.times_lost(), lost);
}

TEST_F(StepLearnerTest, AnEvaluationAfterEveryFourthStepIsExpected) {
  for (std::size_t page = 0; page < 100; ++page) allocate(page);
  const auto forward = [this](std::size_t loss) {
    for (std::size_t page = 0; page < 30; ++page) predicted_kernel({page, 90});
    predicted_kernel({loss});
  };
  const auto train = [&] {
    forward(80);
    for (std::size_t page = 30; page-- > 0;) predicted_kernel({page, 90});
  };
  const auto epoch = [&] {
    for (int step = 0; step < 4; ++step) train();
    for (int batch = 0; batch < 2; ++batch) forward(81);
  };
  for (int i = 0; i < 3; ++i) epoch();
  for (int i = 0; i < 4; ++i) EXPECT_EQ(wrong_in(epoch), 0u);
  EXPECT_EQ(learner.step_kernels(), 4 * 61u + 2 * 31u);
}

TEST_F(StepLearnerTest, ThreeShapesThatComeInTurnAreExpected) {
  for (std::size_t page = 0; page < 30; ++page) allocate(page);
  const auto step = [this](std::size_t shape) {
    // A block of each shape's own size.
    allocate(100, (shape + 1) * kPage);
    for (std::size_t page = 0; page < 30; ++page) kernel({page, 100});
    log.freed(at(100));
  };
  for (int i = 0; i < 3; ++i)
    for (const std::size_t shape : {0, 1, 2}) step(shape);
  const std::uint64_t lost = learner.times_lost();
  for (int i = 0; i < 4; ++i)
    for (const std::size_t shape : {0, 1, 2}) step(shape);
  EXPECT_EQ(learner.step_kernels(), 90u);
  EXPECT_EQ(learner.times_lost(), lost);
}

TEST_F(StepLearnerTest, AStepThatWasSeenBeforeIsKnownAgainAfterItsFirstKernels) {
  for (std::size_t page = 0; page < 200; ++page) allocate(page);
  const auto step = [this](std::size_t kind) {
    for (std::size_t page = 0; page < 60; ++page) predicted_kernel({page, 60 + 60 * kind + page});
  };
  for (const std::size_t kind : {0, 0, 1, 1, 0, 1}) step(kind);
  // In no order that repeats.
  std::size_t most = 0;
  for (const std::size_t kind : {1, 0, 0, 0, 1, 0, 1, 1, 1, 0})
    most = std::max(most, wrong_in([&] { step(kind); }));
  EXPECT_LE(most, policy::kLeastRun + 1);
  EXPECT_EQ(learner.times_lost(), 1u) << "when the second kind was new";
}

TEST_F(StepLearnerTest, AStepOfWhichManyKernelsDifferEachTimeIsLost) {
  for (std::size_t page = 0; page < 36; ++page) allocate(page);
  for (std::size_t page = 40; page < 140; ++page) allocate(page);
  for (int step = 0; step < 4; ++step)
    for (std::size_t page = 0; page < 36; ++page) kernel({page});
  ASSERT_TRUE(learner.predicts());
  std::size_t other = 40;
  for (int step = 0; step < 4; ++step)
    for (std::size_t page = 0; page < 36; ++page) kernel({page % 3 == 0 ? other++ : page});
  EXPECT_FALSE(learner.predicts());
  EXPECT_EQ(learner.times_lost(), 1u);
}

TEST_F(StepLearnerTest, AChainOfTemporaryBlocksIsNoStep) {
  for (std::size_t page = 0; page < 60; ++page) {
    allocate(page + 1);
    kernel({page, page + 1});
  }
  EXPECT_FALSE(learner.predicts());
}

TEST_F(StepLearnerTest, ATemporaryBlockHasNoNextUseAfterItsLast) {
  for (std::size_t page = 0; page < 12; ++page) allocate(page);
  RecordId temporary = kNoRecord;
  for (std::size_t step = 0; step < 4; ++step) {
    temporary = allocate(100 + step);
    for (std::size_t page = 0; page < 12; ++page) {
      kernel(page < 6 ? std::vector<std::size_t>{page, 100 + step}
                      : std::vector<std::size_t>{page});
      if (step == 3 && page == 2) {
        EXPECT_EQ(next_use(temporary), log.newest() + 1);
      }
    }
    if (step < 3) log.freed(at(100 + step));
  }
  EXPECT_EQ(next_use(temporary), std::nullopt);
}

TEST_F(StepLearnerTest, PartsOfABlockAreToldApart) {
  const RecordId block = log.allocated(at(0), 12 * kPageBytes);
  for (int step = 0; step < 3; ++step)
    for (std::size_t page = 0; page < 12; ++page) kernel({page});
  ASSERT_TRUE(learner.predicts());
  EXPECT_EQ(learner.step_kernels(), 12u);
  EXPECT_EQ(coming(4), std::vector<std::uintptr_t>{at(3)});
  EXPECT_EQ(learner.next_use(block, page_of(at(3)), log.newest()), log.newest() + 4);
  EXPECT_EQ(learner.next_use(block, page_of(at(3)), log.newest() + 6), log.newest() + 16);
}

TEST_F(StepLearnerTest, AStepMayUseAnotherPartOfADataSetEachTime) {
  for (std::size_t page = 0; page < 12; ++page) allocate(page);
  log.allocated(at(100), 64 * kPageBytes);
  for (std::size_t step = 0; step < 8; ++step) {
    kernel({100 + step});
    for (std::size_t page = 0; page < 12; ++page) kernel({page});
  }
  ASSERT_TRUE(learner.predicts());
  EXPECT_EQ(learner.step_kernels(), 13u);
  EXPECT_EQ(learner.times_lost(), 0u);
}

TEST_F(StepLearnerTest, LayersOfTheSameShapesAreNotTakenForTheStep) {
  // Three kernels for each of eight layers: only the parameters tell the layers apart.
  for (std::size_t page = 0; page < 8; ++page) allocate(page);
  allocate(50);
  for (int step = 0; step < 4; ++step)
    for (std::size_t layer = 0; layer < 8; ++layer)
      for (int part = 0; part < 3; ++part) kernel({layer, 50});
  ASSERT_TRUE(learner.predicts());
  EXPECT_EQ(learner.step_kernels(), 24u);
  EXPECT_EQ(learner.times_lost(), 0u);
}

TEST_F(StepLearnerTest, AFewMissingAndAddedKernelsDoNotLoseTheStep) {
  for (std::size_t page = 0; page < 20; ++page) allocate(page);
  for (int step = 0; step < 3; ++step)
    for (std::size_t page = 0; page < 20; ++page) kernel({page});
  ASSERT_TRUE(learner.predicts());
  for (std::size_t page = 0; page < 20; ++page) {
    if (page == 5 || page == 6) continue;
    kernel({page});
    if (page == 12) kernel({3, 4});
  }
  EXPECT_TRUE(learner.predicts());
  EXPECT_EQ(learner.times_lost(), 0u);
  for (std::size_t page = 0; page < 20; ++page) kernel({page});
  EXPECT_TRUE(learner.predicts());
  EXPECT_EQ(coming(1).size(), 1u);
}

TEST_F(StepLearnerTest, AnotherProgramLosesTheStepAndIsLearnedInItsTurn) {
  for (std::size_t page = 0; page < 40; ++page) allocate(page);
  for (int step = 0; step < 3; ++step)
    for (std::size_t page = 0; page < 20; ++page) kernel({page});
  ASSERT_TRUE(learner.predicts());
  for (std::size_t page = 20; page < 40; ++page) kernel({page, page - 1});
  EXPECT_FALSE(learner.predicts());
  EXPECT_EQ(learner.times_lost(), 1u);
  for (int step = 0; step < 2; ++step)
    for (std::size_t page = 20; page < 40; ++page) kernel({page, page - 1});
  EXPECT_TRUE(learner.predicts());
  EXPECT_EQ(learner.step_kernels(), 20u);
}

TEST_F(StepLearnerTest, NothingIsPredictedWhereNothingRepeats) {
  for (std::size_t page = 0; page < 500; ++page) allocate(page, kPage / 2 + page * 512);
  for (std::size_t page = 0; page < 500; ++page) {
    kernel({page});
    EXPECT_FALSE(learner.predicts());
  }
  EXPECT_EQ(learner.step_kernels(), 0u);
}

TEST_F(StepLearnerTest, ABoundaryNeedsNoHashOfTheKernels) {
  for (std::size_t page = 0; page < 24; ++page) allocate(page);
  for (int step = 0; step < 3; ++step) {
    for (std::size_t page = 0; page < 24; ++page) kernel({page});
    learner.step_boundary();
  }
  EXPECT_EQ(learner.step_kernels(), 24u);
}

TEST_F(StepLearnerTest, AStepLongerThanTheLogIsNotLearned) {
  for (std::size_t page = 0; page < 64; ++page) allocate(page, kPage / 2 + page * 512);
  std::uint64_t state = 1;
  for (std::size_t i = 0; i < policy::kMostLoggedKernels + 1000; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    kernel({state >> 58});
  }
  EXPECT_FALSE(learner.predicts());
  EXPECT_LE(log.newest(), policy::kMostLoggedKernels + 1000);
  EXPECT_FALSE(log.has_kernel(1));
}

TEST_F(StepLearnerTest, AnAddressThatIsAllocatedAgainIsAnotherBlock) {
  const RecordId first = allocate(3);
  kernel({3});
  log.freed(at(3));
  const RecordId second = allocate(3);
  kernel({3});
  EXPECT_NE(first, second);
  EXPECT_FALSE(log.record(first).is_live);
  EXPECT_EQ(log.use(log.kernel(2).first_use).record, second);
}

TEST_F(StepLearnerTest, SmallBlocksAndUnknownOnesAreLeftOut) {
  EXPECT_EQ(allocate(3, policy::kLeastLoggedBytes - 1), kNoRecord);
  const UseRange uses[] = {{.address = at(3), .size_bytes = 1},
                           {.address = at(9), .size_bytes = 1}};
  EXPECT_EQ(log.add_kernel(uses), kBeforeLog);
  EXPECT_EQ(log.newest(), 0u);
}

}  // namespace
}  // namespace uvm::live
