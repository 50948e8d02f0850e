#include "runtime/log.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <string>

namespace uvm {
namespace {

class LogTest : public ::testing::Test {
 protected:
  void TearDown() override { set_log_level(LogLevel::kWarning); }

  static std::string written(const std::function<void()>& body) {
    ::testing::internal::CaptureStderr();
    body();
    return ::testing::internal::GetCapturedStderr();
  }
};

TEST_F(LogTest, ALineHasThePrefixAndAnEnd) {
  EXPECT_EQ(written([] { log(LogLevel::kWarning, "{} of {}", 1, 2); }), "uvmalloc: 1 of 2\n");
}

TEST_F(LogTest, LinesAboveTheLevelAreDropped) {
  set_log_level(LogLevel::kError);
  EXPECT_EQ(log_level(), LogLevel::kError);
  EXPECT_EQ(written([] { log(LogLevel::kWarning, "one"); }), "");
  EXPECT_EQ(written([] { log_line(LogLevel::kWarning, "two"); }), "");
  EXPECT_EQ(written([] { log_line(LogLevel::kError, "three"); }), "uvmalloc: three\n");
}

TEST_F(LogTest, OffIsSilent) {
  set_log_level(LogLevel::kOff);
  EXPECT_EQ(written([] { log_line(LogLevel::kError, "an error"); }), "");
  EXPECT_EQ(written([] { log_line(LogLevel::kOff, "a line of no level"); }), "");
}

TEST_F(LogTest, OnceIsOnceForEachKey) {
  EXPECT_EQ(written([] {
              log_once(LogLevel::kWarning, "key a", "first");
              log_once(LogLevel::kWarning, "key a", "again");
              log_once(LogLevel::kWarning, "key b", "another");
            }),
            "uvmalloc: first\nuvmalloc: another\n");
}

TEST_F(LogTest, ALineThatWasDroppedIsStillSaidOnce) {
  const auto say = [] { log_once(LogLevel::kWarning, "a dropped key", "at last"); };
  set_log_level(LogLevel::kError);
  EXPECT_EQ(written(say), "");
  set_log_level(LogLevel::kWarning);
  EXPECT_EQ(written(say), "uvmalloc: at last\n");
  EXPECT_EQ(written(say), "");
}

TEST_F(LogTest, ALongLineIsCutAndStillALine) {
  const std::size_t most = kMostLineBytes - std::string("uvmalloc: \n").size();
  const std::string longest(most, 'x');
  EXPECT_EQ(written([&] { log_line(LogLevel::kWarning, longest); }), "uvmalloc: " + longest + "\n");
  EXPECT_EQ(written([&] { log_line(LogLevel::kWarning, longest + "x"); }),
            "uvmalloc: " + longest.substr(0, most - 3) + "...\n");
  EXPECT_EQ(written([] { log_line(LogLevel::kWarning, "{} is no place for a value"); }),
            "uvmalloc: {} is no place for a value\n");
}

}  // namespace
}  // namespace uvm
