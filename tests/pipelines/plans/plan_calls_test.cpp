#include "pipelines/plans/plan_calls.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace {

using Plan = std::unique_ptr<uvmalloc_plan, decltype(&uvmalloc_plan_destroy)>;

// Two storages that live one after the other, and one that lives beside both.
constexpr const char* kDescription = R"({"uvmalloc_storage_plan": 1, "alignment_bytes": 1,
  "variables": [{"name": "n", "lower": 1, "upper": 8}],
  "storages": [{"id": "a", "size": "16 * n", "first_use": 0, "end_use": 2},
               {"id": "b", "size": "8 * n", "first_use": 2, "end_use": 4},
               {"id": "c", "size": "100", "first_use": 0, "end_use": 4}]})";

struct PlanCallsTest : ::testing::Test {
  Plan make(const char* description, double effort = 1) {
    return {uvmalloc_plan_make(description, effort, text.data(), text.size()),
            &uvmalloc_plan_destroy};
  }
  Plan from_json(const std::string& json) {
    return {uvmalloc_plan_from_json(json.c_str(), text.data(), text.size()),
            &uvmalloc_plan_destroy};
  }
  static std::string to_json(const Plan& plan) {
    const std::int64_t needed = uvmalloc_plan_to_json(plan.get(), nullptr, 0);
    std::string json(static_cast<std::size_t>(needed), '?');
    EXPECT_EQ(uvmalloc_plan_to_json(plan.get(), json.data(), json.size()), needed);
    EXPECT_EQ(json.back(), '\0');
    json.pop_back();
    return json;
  }
  std::string error() const { return text.data(); }

  std::array<char, 512> text{};
};

TEST_F(PlanCallsTest, APlanHasItsPlacesAndSizes) {
  const Plan plan = make(kDescription);
  ASSERT_NE(plan, nullptr) << error();
  EXPECT_EQ(uvmalloc_plan_storage_count(plan.get()), 3u);
  EXPECT_EQ(uvmalloc_plan_lower_bound_bytes(plan.get()), 16 * 8 + 100);
  EXPECT_EQ(uvmalloc_plan_arena_bytes(plan.get()), 16 * 8 + 100);
  std::array<std::int64_t, 3> offsets{}, most_bytes{};
  uvmalloc_plan_places(plan.get(), offsets.data(), most_bytes.data());
  EXPECT_EQ(most_bytes, (std::array<std::int64_t, 3>{128, 64, 100}));
  EXPECT_TRUE(offsets[0] + 128 <= offsets[2] || offsets[2] + 100 <= offsets[0]);
  std::int64_t value = 3;
  std::array<std::int64_t, 3> sizes{};
  EXPECT_EQ(uvmalloc_plan_sizes(plan.get(), &value, 1, sizes.data(), text.data(), text.size()), 0);
  EXPECT_EQ(sizes, (std::array<std::int64_t, 3>{48, 24, 100}));
}

TEST_F(PlanCallsTest, AValueBeyondItsRangeAndAWrongCountAreNamed) {
  const Plan plan = make(kDescription);
  ASSERT_NE(plan, nullptr) << error();
  std::array<std::int64_t, 2> values{9, 1};
  std::array<std::int64_t, 3> sizes{};
  auto sizes_of = [&](std::size_t count) {
    return uvmalloc_plan_sizes(plan.get(), values.data(), count, sizes.data(), text.data(),
                               text.size());
  };
  EXPECT_EQ(sizes_of(2), -1);
  EXPECT_EQ(error(), "there are 2 values for 1 variables");
  EXPECT_EQ(sizes_of(1), -1);
  EXPECT_NE(error().find("'n'"), std::string::npos) << error();
}

TEST_F(PlanCallsTest, TheTextOfAPlanGivesTheSamePlan) {
  const Plan plan = make(kDescription);
  ASSERT_NE(plan, nullptr) << error();
  const std::string json = to_json(plan);
  const Plan again = from_json(json);
  ASSERT_NE(again, nullptr) << error();
  EXPECT_EQ(to_json(again), json);
  EXPECT_EQ(uvmalloc_plan_arena_bytes(again.get()), uvmalloc_plan_arena_bytes(plan.get()));
  std::array<char, 4> cut{};
  EXPECT_EQ(uvmalloc_plan_to_json(plan.get(), cut.data(), cut.size()),
            static_cast<std::int64_t>(json.size() + 1));
  EXPECT_EQ(std::string(cut.data()), json.substr(0, 3));
}

TEST_F(PlanCallsTest, TextThatIsNoPlanGivesNoneAndASentence) {
  const Plan plan = make(kDescription);
  ASSERT_NE(plan, nullptr) << error();
  const std::string json = to_json(plan);
  for (const std::string& wrong : {std::string("{"), json.substr(0, json.size() / 2)}) {
    text.fill('\0');
    EXPECT_EQ(from_json(wrong), nullptr);
    EXPECT_NE(error(), "");
    text.fill('\0');
    EXPECT_EQ(make(wrong.c_str()), nullptr);
    EXPECT_NE(error(), "");
  }
}

TEST_F(PlanCallsTest, AnEffortOfAnySizeGivesAPlan) {
  for (const double effort : {-1.0, 0.0, 0.01}) {
    const Plan plan = make(kDescription, effort);
    ASSERT_NE(plan, nullptr) << error();
    EXPECT_GE(uvmalloc_plan_arena_bytes(plan.get()), uvmalloc_plan_lower_bound_bytes(plan.get()));
  }
}

}  // namespace
