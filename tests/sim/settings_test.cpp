#include <gtest/gtest.h>

#include <cstdlib>

#include "sim/engine/settings.hpp"

namespace uvmsim {
namespace {

TEST(ParseBytes, ReadsSuffixesAsPowersOf1024) {
  EXPECT_EQ(parse_bytes("1048576"), 1048576U);
  EXPECT_EQ(parse_bytes("2K"), 2048U);
  EXPECT_EQ(parse_bytes("512M"), 536870912U);
  EXPECT_EQ(parse_bytes("8GiB"), 8589934592U);
  EXPECT_EQ(parse_bytes("3GB"), 3221225472U);
  EXPECT_EQ(parse_bytes("1T"), 1099511627776U);
  EXPECT_EQ(parse_bytes("1.5GiB"), 1610612736U);
  EXPECT_EQ(parse_bytes("8 g"), 8589934592U);
  EXPECT_EQ(parse_bytes("7B"), 7U);
  EXPECT_EQ(parse_bytes("0"), 0U);
}

TEST(ParseBytes, RefusesEverythingElse) {
  for (const char* text : {"", "G", "-1", "1.5", "1.G", "1.5e1G", "8iB", "8 G iB", "8GiBs", "8Gi",
                           "8P", "0x10", "99999999999999999999", "99999999999999999T"}) {
    EXPECT_EQ(parse_bytes(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace uvmsim
