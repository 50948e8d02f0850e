#include <gtest/gtest.h>

#include <uvmalloc/sim/uvmsim.h>
#include "sim/engine/call_table.hpp"

namespace uvmsim {
namespace {

TEST(CallTable, CountsByName) {
  CallRecord& record = CallTable::instance().record("testCounted");
  EXPECT_EQ(&record, &CallTable::instance().record("testCounted"));
  EXPECT_EQ(record.enter(), std::nullopt);
  EXPECT_EQ(record.enter(), std::nullopt);
  EXPECT_EQ(uvmsim_call_count("testCounted"), 2U);
  EXPECT_EQ(uvmsim_call_count("testNeverSeen"), 0U);
  CallTable::instance().reset_counts();
  EXPECT_EQ(uvmsim_call_count("testCounted"), 0U);
}

TEST(CallTable, TheNthCallFailsOnce) {
  CallRecord& record = CallTable::instance().record("testFailing");
  ASSERT_EQ(uvmsim_fail_call("testFailing", 2, 77), UVMSIM_OK);
  EXPECT_EQ(record.enter(), std::nullopt);
  EXPECT_EQ(record.enter(), 77);
  EXPECT_EQ(record.enter(), std::nullopt);
}

TEST(CallTable, AFailureCanBeTakenBack) {
  CallRecord& record = CallTable::instance().record("testForgiven");
  ASSERT_EQ(uvmsim_fail_call("testForgiven", 1, 77), UVMSIM_OK);
  ASSERT_EQ(uvmsim_fail_call("testForgiven", 0, 0), UVMSIM_OK);
  EXPECT_EQ(record.enter(), std::nullopt);
  EXPECT_EQ(uvmsim_fail_call("", 1, 1), UVMSIM_ERROR_INVALID);
  EXPECT_EQ(uvmsim_fail_call(nullptr, 1, 1), UVMSIM_ERROR_INVALID);
}

TEST(CallTable, ACallThatTheSettingNamesIsRefusedAlways) {
  ASSERT_EQ(setenv("UVMSIM_REFUSED_CALLS", "testOther,testRefused", 1), 0);
  CallRecord& refused = CallTable::instance().record("testRefused");
  CallRecord& prefix = CallTable::instance().record("testRef");
  unsetenv("UVMSIM_REFUSED_CALLS");
  for (int call = 0; call < 3; ++call) EXPECT_EQ(refused.enter(), 801);
  EXPECT_EQ(prefix.enter(), std::nullopt);
  EXPECT_EQ(refused.calls(), 3U);
}

}  // namespace
}  // namespace uvmsim
