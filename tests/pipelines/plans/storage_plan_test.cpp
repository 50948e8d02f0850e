#include "pipelines/plans/storage_plan.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <string>

#include <fmt/format.h>

#include "pipelines/plans/storage_plan_json.hpp"

#include "tests/support/message_of.hpp"

namespace uvm {
namespace {

using testing::message_of;

std::string fault(const PlanDescription& description) {
  return message_of([&] { StoragePlan::make(description); });
}

// The RFC's own example: x, y and a have a first dimension that varies; `out` joins all four.
PlanDescription rfc_example() {
  return {.variables = {{"n1", 1, 128, ""}, {"n2", 1, 32, ""}, {"n3", 1, 12, ""}},
          .storages = {{"x", "n1 * 4 * 2 * 3 * 4", 0, 2, ""},
                       {"y", "n2 * 4 * 2 * 3 * 4", 0, 2, ""},
                       {"a", "n3 * 4 * 2 * 3 * 4", 0, 3, ""},
                       {"b", "27 * 4 * 2 * 3 * 4", 0, 3, ""},
                       {"out", "(n1 + n2 + n3 + 27) * 4 * 2 * 3 * 4", 3, 5, ""}},
          .alignment_bytes = 1};
}

TEST(StoragePlan, MostBytesAreThoseOfTheRfc) {
  const StoragePlan plan = StoragePlan::make(rfc_example());
  std::vector<std::int64_t> most;
  for (const StoragePlan::Place& place : plan.places()) most.push_back(place.most_bytes);
  EXPECT_EQ(most, (std::vector<std::int64_t>{12288, 3072, 1152, 2592, 19104}));
  EXPECT_EQ(plan.lower_bound_bytes(), 19104);
  EXPECT_EQ(plan.arena_bytes(), 19104) << "the output lies over its inputs' memory";
}

TEST(StoragePlan, OffsetsAndSizesAreMultiplesOfTheAlignment) {
  PlanDescription description = rfc_example();
  description.alignment_bytes = 512;
  const StoragePlan plan = StoragePlan::make(description);
  for (const StoragePlan::Place& place : plan.places()) {
    EXPECT_EQ(place.offset % 512, 0);
    EXPECT_EQ(place.most_bytes % 512, 0);
  }
  EXPECT_EQ(plan.arena_bytes(), plan.lower_bound_bytes());
}

TEST(StoragePlan, DerivedVariablesAreEvaluatedInTheirOrder) {
  const StoragePlan plan = StoragePlan::make(
      {.variables = {{"c", 0, 0, "b + 1"}, {"b", 0, 0, "n * 2"}, {"n", 1, 10, ""}},
       .storages = {{"x", "c", 0, 1, ""}, {"y", "8", 0, 1, ""}},
       .alignment_bytes = 1});
  std::vector<std::int64_t> values{0, 0, 4};
  plan.derive(values);
  EXPECT_EQ(values, (std::vector<std::int64_t>{9, 8, 4}));
  EXPECT_EQ(plan.places()[0].most_bytes, 21);
  EXPECT_EQ(plan.dependencies(0), (std::vector<std::size_t>{2})) << "by way of c and b";
  EXPECT_TRUE(plan.dependencies(1).empty());
}

TEST(StoragePlan, APartLiesInItsOwnerWhichIsLiveAsLong) {
  const StoragePlan plan = StoragePlan::make({.variables = {},
                                              .storages = {{"x", "10", 0, 2, ""},
                                                           {"x.relu", "12", 1, 5, "x"},
                                                           {"first", "4", 2, 4, "x.relu"},
                                                           {"y", "6", 4, 6, ""}},
                                              .alignment_bytes = 1});
  EXPECT_EQ(plan.owner(1), 0u);
  EXPECT_EQ(plan.owner(2), 0u);
  EXPECT_EQ(plan.places()[1].offset, plan.places()[0].offset);
  EXPECT_EQ(plan.places()[2].offset, plan.places()[0].offset);
  EXPECT_EQ(plan.places()[0].most_bytes, 12) << "its largest part's";
  EXPECT_EQ(plan.places()[2].most_bytes, 4);
  EXPECT_EQ(plan.arena_bytes(), 18) << "x is still live when y begins";
}

TEST(StoragePlan, WrongDescriptionsAreNamed) {
  const PlanVariable n{"n", 1, 8, ""};
  auto with = [&](std::vector<PlanVariable> variables, std::vector<PlanStorage> storages) {
    return fault({std::move(variables), std::move(storages), 1});
  };
  EXPECT_EQ(with({n, n}, {}), "the variable 'n' is there twice");
  EXPECT_EQ(with({{"", 0, 1, ""}}, {}), "a variable has no name");
  for (const char* name : {"min", "max", "2n", "n m", "a.b", "n\u00e9", "-n"}) {
    EXPECT_NE(with({{name, 0, 1, ""}}, {}).find(fmt::format("can use the variable '{}'", name)),
              std::string::npos)
        << name;
  }
  EXPECT_EQ(with({{"_min2", 0, 1, ""}, {"maX", 0, 1, "_min2 + 1"}}, {{"x", "maX", 0, 1, ""}}),
            "nothing was thrown");
  EXPECT_EQ(with({{"n", 5, 4, ""}}, {}),
            "the variable 'n' has the range 5 to 4, which contains no number");
  EXPECT_EQ(with({n}, {{"x", "n", 0, 1, ""}, {"x", "n", 0, 1, ""}}),
            "the storage 'x' is there twice");
  EXPECT_EQ(with({n}, {{"x", "4 * k", 0, 1, ""}}),
            "the expression '4 * k' uses the unknown variable 'k'; known: n (at character 5)");
  EXPECT_EQ(with({n}, {{"x", "n", 3, 3, ""}}),
            "the storage 'x' is live from step 3 to before step 3, which is not a step");
  EXPECT_EQ(with({n}, {{"x", "n", 0, 1, "y"}}),
            "the storage 'x' is part of the unknown storage 'y'");
  EXPECT_EQ(with({n}, {{"x", "n", 0, 1, "y"}, {"y", "n", 0, 1, "z"}, {"z", "n", 0, 1, "x"}}),
            "parts of storages go round in a circle: x -> y -> z -> x");
  EXPECT_EQ(with({n}, {{"x", "n", 0, 1, "x"}}), "parts of storages go round in a circle: x -> x");
  EXPECT_EQ(with({{"a", 0, 0, "b + 1"}, {"b", 0, 0, "2 * a"}, {"c", 0, 0, "a"}}, {}),
            "the derived variables go round in a circle: a -> b -> a");
  EXPECT_EQ(with({n}, {{"x", "n - 9", 0, 1, ""}}),
            "the storage 'x' has the size 'n - 9', which is at most -1");
  EXPECT_EQ(with({n}, {{"x", "n / (n - 1)", 0, 1, ""}}),
            "the expression 'n / (n - 1)' may divide by zero");
  EXPECT_EQ(with({{"n", 1, INT64_MAX, ""}}, {{"x", "4 * n", 0, 1, ""}}),
            "the expression '4 * n' overflows");
  EXPECT_EQ(with({{"n", 1, INT64_MAX, ""}}, {{"x", "n", 0, 1, ""}}),
            "the storage 'x' has the size 'n', which can be 9223372036854775807 bytes");
  EXPECT_EQ(fault({{}, {}, 3}), "the alignment is 3; accepted: a power of two up to 2^30");
  const StoragePlan plan = StoragePlan::make({{n}, {{"x", "n", 0, 1, ""}}, 1});
  EXPECT_EQ(message_of([&] { plan.storage_number("y"); }), "the storage 'y' is unknown");
  EXPECT_EQ(message_of([&] { plan.variable_number("m"); }),
            "the variable 'm' is unknown; known: n");
}

TEST(StoragePlan, AValueBeyondItsRangeIsNamed) {
  const StoragePlan plan = StoragePlan::make({{{"n", 2, 8, ""}}, {{"x", "n", 0, 1, ""}}, 1});
  for (const std::int64_t value : {1, 9}) {
    std::vector<std::int64_t> values{value};
    EXPECT_EQ(message_of([&] { plan.derive(values); }),
              "the variable 'n' is " + std::to_string(value) + "; accepted: 2 to 8");
  }
}

TEST(StoragePlan, ASizeThatIsNegativeForSomeValuesIsNamedWithThem) {
  const StoragePlan plan =
      StoragePlan::make({{{"n", 1, 8, ""}, {"m", 1, 8, ""}}, {{"x", "n - m", 0, 1, ""}}, 1});
  EXPECT_EQ(plan.places()[0].most_bytes, 7);
  EXPECT_EQ(message_of([&] {
              plan.size_bytes(0, std::vector<std::int64_t>{3, 5});
            }),
            "the storage 'x' has the size 'n - m', which is -2 for n = 3, m = 5");
}

// ---- JSON

TEST(StoragePlanJson, APlanIsReadBackAsItWas) {
  PlanDescription description = rfc_example();
  description.variables.push_back({"all", 0, 0, "n1 + n2"});
  description.storages.push_back({"part \"\u00e4\"", "all", 1, 2, "x"});
  const StoragePlan plan = StoragePlan::make(description);
  const StoragePlan read = plan_from_json(plan_to_json(plan));
  EXPECT_EQ(read.description(), plan.description());
  EXPECT_EQ(read.places(), plan.places());
  EXPECT_EQ(read.arena_bytes(), plan.arena_bytes());
  EXPECT_EQ(plan_to_json(read), plan_to_json(plan));
}

constexpr const char* kSmall =
    R"({"uvmalloc_storage_plan": 1, "alignment_bytes": 4, "variables": [{"name": "n", "lower": 1,
"upper": 8}], "storages": [{"id": "x", "size": "4 * n", "first_use": 0, "end_use": 2, "offset": 0,
"most_bytes": 32}, {"id": "y", "size": "n", "first_use": 1, "end_use": 2, "offset": 32,
"most_bytes": 8}]})";

std::string changed(const std::string& from, const std::string& to) {
  std::string text = kSmall;
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

std::string json_fault(const std::string& text) {
  return message_of([&] { plan_from_json(text); });
}

TEST(StoragePlanJson, WrongTextIsNamed) {
  EXPECT_EQ(plan_from_json(kSmall).arena_bytes(), 40);
  EXPECT_NE(json_fault("").find("the plan is not JSON: "), std::string::npos);
  EXPECT_EQ(json_fault("[]"), "the plan is not an object");
  EXPECT_EQ(json_fault(changed("plan\": 1", "plan\": 2")),
            "the plan has the version 2; accepted: 1");
  EXPECT_EQ(json_fault(changed("\"alignment_bytes\": 4, ", "")),
            "the plan has no 'alignment_bytes'");
  EXPECT_EQ(json_fault(changed("\"alignment_bytes\": 4", "\"alignment_bytes\": 4.5")),
            "the plan: 'alignment_bytes' is not a whole number of 64 bits");
  EXPECT_EQ(json_fault(changed("\"upper\": 8", "\"upper\": 18446744073709551615")),
            "variable 0: 'upper' is not a whole number of 64 bits");
  EXPECT_EQ(json_fault(changed("\"first_use\": 0", "\"from\": 0")),
            "storage 0 has the unknown key 'from'");
  EXPECT_EQ(json_fault(changed("\"id\": \"x\"", "\"id\": 5")), "storage 0: 'id' is not a string");
  EXPECT_EQ(json_fault(changed("\"lower\": 1,", "\"expression\": \"2\",")),
            "variable 0 has a range beside its expression, or an empty one");
}

TEST(StoragePlanJson, AKeyIsThereOnce) {
  EXPECT_EQ(json_fault(changed("\"alignment_bytes\": 4",
                               "\"alignment_bytes\": 8, "
                               "\"alignment_bytes\": 4")),
            "the plan has the key 'alignment_bytes' twice in one object");
  EXPECT_EQ(json_fault(changed("\"lower\": 1,", "\"lower\": 1, \"lower\": 1,")),
            "the plan has the key 'lower' twice in one object");
  EXPECT_EQ(json_fault(changed("\"offset\": 32", "\"offset\": 0, \"offset\": 32")),
            "the plan has the key 'offset' twice in one object");
}

TEST(StoragePlanJson, PlacesThatDoNotFitAreRefused) {
  EXPECT_EQ(json_fault(changed("\"offset\": 32", "\"offset\": 28")),
            "the places overlap: buffers 0 and 1 overlap");
  EXPECT_EQ(json_fault(changed("\"offset\": 32", "\"offset\": 33")),
            "the storage 'y' lies at 33; accepted: a multiple of 4 from 0");
  EXPECT_EQ(json_fault(changed("\"offset\": 32", "\"offset\": -4")),
            "the storage 'y' lies at -4; accepted: a multiple of 4 from 0");
  EXPECT_EQ(json_fault(changed("\"most_bytes\": 32", "\"most_bytes\": 28")),
            "the storage 'x' has 28 bytes; its size needs 32");
}

TEST(StoragePlanJson, EveryTruncationIsAnError) {
  const std::string text = plan_to_json(StoragePlan::make(rfc_example()));
  for (std::size_t length = 0; length < text.size(); ++length) {
    ASSERT_NE(json_fault(text.substr(0, length)).find("the plan is not JSON: "), std::string::npos)
        << length;
  }
}

TEST(StoragePlanJson, AChangedCharacterNeverMakesAPlanThatOverlaps) {
  const std::string text = plan_to_json(StoragePlan::make(rfc_example()));
  std::mt19937 random(1);
  int accepted = 0;
  for (int round = 0; round < 2000; ++round) {
    std::string broken = text;
    broken[random() % broken.size()] = "0123456789\",:{}-n*"[random() % 18];
    try {
      const StoragePlan plan = plan_from_json(broken);
      ++accepted;
      for (std::size_t one = 0; one < plan.places().size(); ++one) {
        const auto& storage = plan.description().storages[one];
        ASSERT_LE(plan.places()[one].offset + plan.places()[one].most_bytes, plan.arena_bytes());
        for (std::size_t other = 0; other < one; ++other) {
          const auto& earlier = plan.description().storages[other];
          const bool together =
              storage.first_use < earlier.end_use && earlier.first_use < storage.end_use;
          const auto& left = plan.places()[one];
          const auto& right = plan.places()[other];
          ASSERT_FALSE(together && left.offset < right.offset + right.most_bytes &&
                       right.offset < left.offset + left.most_bytes)
              << broken;
        }
      }
    } catch (const std::invalid_argument&) {
      continue;
    }
  }
  EXPECT_GT(accepted, 0);
}

}  // namespace
}  // namespace uvm
