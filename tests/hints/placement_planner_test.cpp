#include "hints/placement_planner.hpp"

#include <gtest/gtest.h>

namespace uvm {
namespace {

constexpr std::size_t kSpanPages = 32;

class PlacementPlannerTest : public ::testing::Test {
 protected:
  PlacementPlannerTest() { ledger_.add_span(base_, kSpanPages * kPageBytes); }

  PlacementPlanner planner(Policy policy = Policy::kAuto,
                           std::size_t soft_bytes = kSpanPages * kPageBytes,
                           bool coherent = false) {
    return {policy, {{soft_bytes, coherent}}, ledger_, counters_};
  }
  std::uint64_t skipped(HintKind kind, SkipReason reason) {
    return counters_.of(kind).skipped[static_cast<std::size_t>(reason)];
  }
  Hint advise(Advice advice, Place place, std::size_t pages) {
    return {HintKind::kAdvise, advice, place, base_, pages * kPageBytes};
  }
  Hint prefetch(Place place, std::size_t pages) {
    return {HintKind::kPrefetch, {}, place, base_, pages * kPageBytes};
  }
  Hint copy(Place place, std::size_t pages) {
    return {HintKind::kPrefetch, {}, place, base_, pages * kPageBytes, true};
  }

  char* base_ = reinterpret_cast<char*>(1000 * kPageBytes);
  ResidencyLedger ledger_;
  HintCounters counters_;
};

TEST_F(PlacementPlannerTest, ADeviceIsToBeMeasuredAtEachQuarterOfItsSoftBudget) {
  auto plan_for = planner();
  std::vector<std::size_t> measured;
  for (std::size_t page = 0; page < kSpanPages; ++page) {
    plan_for.plan_use(base_ + page * kPageBytes, kPageBytes, Place::device(0));
    if (!plan_for.has_news()) continue;
    const PlacementPlanner::PlacementEvents events = plan_for.take_events();
    EXPECT_EQ(events.devices_to_measure, std::vector<int>{0});
    EXPECT_TRUE(events.short_devices.empty());
    measured.push_back(page + 1);
  }
  EXPECT_EQ(measured, (std::vector<std::size_t>{8, 16, 24, 32}));
}

TEST_F(PlacementPlannerTest,
       TheSoftBudgetFollowsWhatOtherProgramsLeaveAndNeverGrowsBeyondItsStart) {
  auto plan_for = planner();
  plan_for.plan_use(base_, 8 * kPageBytes, Place::device(0));
  plan_for.set_free_bytes(0, 4 * kPageBytes);
  EXPECT_EQ(plan_for.soft_budget_bytes(0), 12 * kPageBytes);
  EXPECT_EQ(plan_for.credit_bytes(0), 4 * kPageBytes);
  plan_for.set_free_bytes(0, 0);
  EXPECT_EQ(plan_for.credit_bytes(0), 0u);
  plan_for.set_free_bytes(0, 100 * kPageBytes);
  EXPECT_EQ(plan_for.soft_budget_bytes(0), kSpanPages * kPageBytes);
}

TEST_F(PlacementPlannerTest, ADeviceSpanPrefersItsDevice) {
  SegmentPlacement placement;
  HintPlan plan =
      planner().plan_span(base_, kSpanPages * kPageBytes, Facade::kDevice, 0, &placement);
  EXPECT_EQ(plan, (HintPlan{advise(Advice::kSetPreferredLocation, Place::device(0), kSpanPages)}));
}

TEST_F(PlacementPlannerTest, HostAndPinnedSpansPreferTheHostAndAreAccessedByTheDevice) {
  for (Facade facade : {Facade::kHost, Facade::kPinned}) {
    SegmentPlacement placement;
    HintPlan plan = planner().plan_span(base_, kSpanPages * kPageBytes, facade, 0, &placement);
    EXPECT_EQ(plan, (HintPlan{advise(Advice::kSetPreferredLocation, Place::host(), kSpanPages),
                              advise(Advice::kSetAccessedBy, Place::device(0), kSpanPages)}));
  }
}

TEST_F(PlacementPlannerTest, AMoveAdvisesOnceAndPrefetchesOnce) {
  auto plan_for = planner();
  SegmentPlacement placement{Place::host(), Place::device(0), 0};
  EXPECT_EQ(plan_for.plan_move(base_, 4 * kPageBytes, &placement, Place::device(0)),
            (HintPlan{copy(Place::device(0), 4),
                      advise(Advice::kSetPreferredLocation, Place::device(0), 4)}));
  EXPECT_EQ(plan_for.plan_move(base_, 4 * kPageBytes, &placement, Place::device(0)), HintPlan{})
      << "a repeat sends nothing";
  EXPECT_EQ(skipped(HintKind::kAdvise, SkipReason::kAlreadyThere), 1u);
  EXPECT_EQ(skipped(HintKind::kPrefetch, SkipReason::kAlreadyThere), 1u);
}

TEST_F(PlacementPlannerTest, AdviceOfAProgramIsSentWhereItChangesSomething) {
  auto plan_for = planner();
  SegmentPlacement placement{Place::host(), Place::device(0), 0};
  auto plan = [&](const WantedPlacement& wanted) {
    return plan_for.plan_advice(base_, 4 * kPageBytes, &placement, wanted);
  };
  EXPECT_EQ(plan({Place::host(), Place::device(0), false}), HintPlan{});
  EXPECT_EQ(plan({Place::device(0), Place::host(), {}}),
            (HintPlan{advise(Advice::kSetPreferredLocation, Place::device(0), 4),
                      advise(Advice::kSetAccessedBy, Place::host(), 4)}));
  EXPECT_EQ(plan({}), HintPlan{});
  EXPECT_EQ(placement.preferred, Place::device(0));
  EXPECT_EQ(placement.accessed_by, Place::host());
}

TEST_F(PlacementPlannerTest, ReadMostlyIsSetOnceHoldsOverMovesAndIsTakenBack) {
  auto plan_for = planner();
  SegmentPlacement placement{Place::host(), Place::device(0), 0};
  auto plan = [&](bool read_mostly) {
    return plan_for.plan_advice(base_, 4 * kPageBytes, &placement, {.read_mostly = read_mostly});
  };
  EXPECT_EQ(plan(true), (HintPlan{advise(Advice::kSetReadMostly, Place::host(), 4)}));
  EXPECT_EQ(plan(true), HintPlan{});
  EXPECT_FALSE(plan_for.plan_move(base_, 4 * kPageBytes, &placement, Place::device(0)).empty());
  EXPECT_EQ(plan(true), HintPlan{});
  EXPECT_EQ(plan(false), (HintPlan{advise(Advice::kUnsetReadMostly, Place::host(), 4)}));
  EXPECT_EQ(plan(false), HintPlan{});
  EXPECT_EQ(skipped(HintKind::kAdvise, SkipReason::kAlreadyThere), 3u);
}

TEST_F(PlacementPlannerTest, WhatIsKnownOfNothingIsAlwaysAdvised) {
  auto plan_for = planner();
  for (const bool read_mostly : {true, true, false, false}) {
    EXPECT_EQ(plan_for.plan_advice(base_, kPageBytes, nullptr,
                                   {Place::host(), Place::nowhere(), read_mostly}),
              (HintPlan{advise(Advice::kSetPreferredLocation, Place::host(), 1),
                        advise(read_mostly ? Advice::kSetReadMostly : Advice::kUnsetReadMostly,
                               Place::host(), 1)}));
  }
}

TEST_F(PlacementPlannerTest, WhatAThreadsPolicyRulesOutIsNotNotedAsSent) {
  auto plan_for = planner();
  SegmentPlacement placement{Place::host(), Place::device(0), 0};
  EXPECT_EQ(set_thread_policy(Policy::kDriver), std::nullopt);
  EXPECT_EQ(plan_for.plan_move(base_, kPageBytes, &placement, Place::device(0)), HintPlan{});
  EXPECT_EQ(plan_for.plan_advice(base_, kPageBytes, &placement,
                                 {.preferred = Place::device(0), .read_mostly = true}),
            HintPlan{});
  EXPECT_FALSE(placement.read_mostly);
  EXPECT_EQ(placement.preferred, Place::host());
  SegmentPlacement span;
  EXPECT_EQ(plan_for.plan_span(base_, kPageBytes, Facade::kDevice, 0, &span),
            (HintPlan{advise(Advice::kSetPreferredLocation, Place::device(0), 1)}))
      << "others will use the span";
  EXPECT_EQ(set_thread_policy(std::nullopt), Policy::kDriver);
  EXPECT_EQ(plan_for.plan_move(base_, kPageBytes, &placement, Place::device(0)),
            (HintPlan{copy(Place::device(0), 1),
                      advise(Advice::kSetPreferredLocation, Place::device(0), 1)}));
}

TEST_F(PlacementPlannerTest, AThreadMayHavePrefetchesWherePlannersHaveNone) {
  auto plan_for = planner(Policy::kDriver);
  set_thread_policy(Policy::kAuto);
  EXPECT_EQ(plan_for.plan_use(base_, kPageBytes, Place::device(0)),
            (HintPlan{prefetch(Place::device(0), 1)}));
  set_thread_policy(std::nullopt);
  EXPECT_EQ(plan_for.plan_use(base_ + kPageBytes, kPageBytes, Place::device(0)), HintPlan{});
}

TEST_F(PlacementPlannerTest, APartOfASegmentIsPrefetchedButNeverAdvised) {
  auto plan_for = planner();
  EXPECT_EQ(plan_for.plan_move(base_, 2 * kPageBytes, nullptr, Place::device(0)),
            (HintPlan{copy(Place::device(0), 2)}));
  EXPECT_EQ(skipped(HintKind::kAdvise, SkipReason::kSharedPages), 1u);
}

TEST_F(PlacementPlannerTest, LessThanAPageIsNeitherAdvisedNorPrefetched) {
  auto plan_for = planner();
  EXPECT_EQ(plan_for.plan_move(base_ + 512, 4096, nullptr, Place::device(0)), HintPlan{});
  EXPECT_EQ(skipped(HintKind::kPrefetch, SkipReason::kSharedPages), 1u);
}

TEST_F(PlacementPlannerTest, PingPongIsAdvisedForBothSidesAndThenOnlyPrefetched) {
  auto plan_for = planner();
  SegmentPlacement placement{Place::host(), Place::nowhere(), 0};
  auto to = [&](Place place) { return plan_for.plan_move(base_, kPageBytes, &placement, place); };
  EXPECT_EQ(to(Place::device(0)).size(), 2u);
  EXPECT_EQ(to(Place::host()).size(), 2u);
  EXPECT_EQ(to(Place::device(0)), (HintPlan{copy(Place::device(0), 1),
                                            advise(Advice::kSetPreferredLocation, Place::host(), 1),
                                            advise(Advice::kSetAccessedBy, Place::device(0), 1)}));
  EXPECT_EQ(to(Place::host()), (HintPlan{copy(Place::host(), 1)}));
  EXPECT_EQ(to(Place::device(0)), (HintPlan{copy(Place::device(0), 1)}));
  EXPECT_EQ(skipped(HintKind::kAdvise, SkipReason::kPingPong), 1u);
}

TEST_F(PlacementPlannerTest, ADeviceThatHasThePagesMappedIsNotAdvisedSoAgain) {
  auto plan_for = planner();
  SegmentPlacement placement{Place::host(), Place::device(0), 0};
  auto to = [&](Place place) { return plan_for.plan_move(base_, kPageBytes, &placement, place); };
  to(Place::device(0));
  to(Place::host());
  EXPECT_EQ(to(Place::device(0)),
            (HintPlan{copy(Place::device(0), 1),
                      advise(Advice::kSetPreferredLocation, Place::host(), 1)}));
}

TEST_F(PlacementPlannerTest, PrefetchesStopWhenTheSoftBudgetIsBelievedFull) {
  auto plan_for = planner(Policy::kAuto, 4 * kPageBytes);
  EXPECT_EQ(plan_for.plan_use(base_, 3 * kPageBytes, Place::device(0)).size(), 1u);
  EXPECT_EQ(plan_for.credit_bytes(0), kPageBytes);
  EXPECT_EQ(plan_for.plan_use(base_ + 3 * kPageBytes, 2 * kPageBytes, Place::device(0)),
            HintPlan{});
  EXPECT_EQ(skipped(HintKind::kPrefetch, SkipReason::kNoCredit), 1u);
  ledger_.set(base_, kPageBytes, Place::host());  // a page left the device, so its credit is back
  EXPECT_EQ(plan_for.plan_use(base_ + 3 * kPageBytes, 2 * kPageBytes, Place::device(0)).size(), 1u);
}

TEST_F(PlacementPlannerTest, CoherentMachinesAndOtherPoliciesGetNoHints) {
  const auto expect_no_hints = [&](PlacementPlanner plan_for) {
    SegmentPlacement placement;
    EXPECT_EQ(plan_for.plan_span(base_, kPageBytes, Facade::kHost, 0, &placement), HintPlan{});
    EXPECT_EQ(plan_for.plan_move(base_, kPageBytes, &placement, Place::device(0)), HintPlan{});
  };
  expect_no_hints(planner(Policy::kAuto, 1u << 30, true));
  expect_no_hints(planner(Policy::kDriver));
  expect_no_hints(planner(Policy::kOff));
  EXPECT_GT(skipped(HintKind::kAdvise, SkipReason::kCoherent), 0u);
  EXPECT_GT(skipped(HintKind::kAdvise, SkipReason::kPolicy), 0u);
}

TEST(SkipReason, HasANameForEachValue) {
  EXPECT_STREQ(to_string(SkipReason::kAlreadyThere), "already_there");
  EXPECT_STREQ(to_string(SkipReason::kNoCredit), "no_credit");
  EXPECT_STREQ(to_string(SkipReason::kPolicy), "policy");
  EXPECT_STREQ(to_string(SkipReason::kCoherent), "coherent");
  EXPECT_STREQ(to_string(SkipReason::kSharedPages), "shared_pages");
  EXPECT_STREQ(to_string(SkipReason::kPingPong), "ping_pong");
}

TEST(Policy, HasANameForEachValue) {
  EXPECT_EQ(to_string(Policy::kAuto), "auto");
  EXPECT_EQ(to_string(Policy::kDriver), "driver");
  EXPECT_EQ(to_string(Policy::kOff), "off");
  EXPECT_EQ(to_string(Policy::kLru), "lru");
  EXPECT_EQ(to_string(Policy::kPlanned), "planned");
}

}  // namespace
}  // namespace uvm
