#include "pipelines/plans/size_expression.hpp"

#include <gtest/gtest.h>

#include <optional>
#include <random>
#include <string>
#include <vector>

namespace uvm {
namespace {

const std::vector<std::string> kNames{"n", "m", "s0"};
constexpr std::int64_t kLargest = INT64_MAX;

std::int64_t value(const std::string& text, std::vector<std::int64_t> values = {7, 3, 10}) {
  return SizeExpression::parse(text, kNames).evaluate(values);
}

std::string error(const std::string& text, std::vector<std::int64_t> values = {7, 3, 10}) {
  try {
    return "no error: " + std::to_string(value(text, values));
  } catch (const ExpressionError& thrown) {
    return thrown.what();
  }
}

TEST(SizeExpression, OperatorsHaveTheUsualOrder) {
  EXPECT_EQ(value("2 + 3 * n"), 23);
  EXPECT_EQ(value("(2 + 3) * n"), 35);
  EXPECT_EQ(value("n - m - 1"), 3);
  EXPECT_EQ(value("100 / s0 / 3"), 3);
  EXPECT_EQ(value("4*n*m+s0%4"), 86);
  EXPECT_EQ(value("-n + 10"), 3);
  EXPECT_EQ(value("- - n"), 7);
  EXPECT_EQ(value("min(n, m) + max(n, m * 4)"), 15);
  EXPECT_EQ(value("(n - 1) // 2 + 1"), 4);
}

TEST(SizeExpression, DivisionRoundsDownAsInPython) {
  EXPECT_EQ(value("-7 / 2"), -4);
  EXPECT_EQ(value("7 / (-2)"), -4);
  EXPECT_EQ(value("-7 % 2"), 1);
  EXPECT_EQ(value("7 % (-2)"), -1);
  EXPECT_EQ(value("-8 / 2"), -4);
}

TEST(SizeExpression, FaultsOfTheTextAreNamedWithTheirPlace) {
  EXPECT_EQ(error("4 * k"),
            "the expression '4 * k' uses the unknown variable 'k'; known: n, m, s0 (at character "
            "5)");
  EXPECT_EQ(error("4 * "), "the expression '4 * ' ends too early (at character 5)");
  EXPECT_EQ(error(""), "the expression '' ends too early (at character 1)");
  EXPECT_EQ(error("(n"), "the expression '(n' has no ')' (at character 3)");
  EXPECT_EQ(error("n m"), "the expression 'n m' has text after the expression (at character 3)");
  EXPECT_EQ(error("n $"), "the expression 'n $' has text after the expression (at character 3)");
  EXPECT_EQ(error("*n"), "the expression '*n' has no number, name or '(' (at character 1)");
  EXPECT_EQ(error("min(n)"), "the expression 'min(n)' has no ',' (at character 6)");
  EXPECT_EQ(error("9223372036854775808"),
            "the expression '9223372036854775808' has a number above 2^63 - 1 (at character 1)");
  EXPECT_NE(error(std::string(100, '(')).find("is nested too deeply"), std::string::npos);
  EXPECT_NE(error(std::string(5000, '-') + "n").find("is longer than 4096 bytes"),
            std::string::npos);
}

TEST(SizeExpression, OverflowIsAnErrorThatNamesTheExpression) {
  EXPECT_EQ(error("n * m", {kLargest, 2, 0}), "the expression 'n * m' overflows");
  EXPECT_EQ(error("n + 1", {kLargest, 0, 0}), "the expression 'n + 1' overflows");
  EXPECT_EQ(error("m - n", {kLargest, -5, 0}), "the expression 'm - n' overflows");
  EXPECT_EQ(error("-n", {INT64_MIN, 0, 0}), "the expression '-n' overflows");
  EXPECT_EQ(error("n / m", {INT64_MIN, -1, 0}), "the expression 'n / m' overflows");
  EXPECT_EQ(value("n % m", {INT64_MIN, -1, 0}), 0);
  EXPECT_EQ(value("n", {kLargest, 0, 0}), kLargest);
}

TEST(SizeExpression, DivisionByZeroIsAnErrorThatNamesTheExpression) {
  EXPECT_EQ(error("n / (m - 3)"), "the expression 'n / (m - 3)' divides by zero");
  EXPECT_EQ(error("n % (m - 3)"), "the expression 'n % (m - 3)' divides by zero");
}

TEST(SizeExpression, KnowsWhichVariablesItUses) {
  EXPECT_EQ(SizeExpression::parse("s0 * n + s0", kNames).variables(),
            (std::vector<std::size_t>{0, 2}));
  EXPECT_TRUE(SizeExpression::parse("12", kNames).variables().empty());
}

TEST(SizeExpression, RangesAreExactWhereEachVariableAppearsOnce) {
  const std::vector<SizeRange> ranges{{1, 8}, {-2, 3}, {5, 5}};
  auto range = [&](const char* text) { return SizeExpression::parse(text, kNames).range(ranges); };
  EXPECT_EQ(range("4 * n + 2"), (SizeRange{6, 34}));
  EXPECT_EQ(range("n * m"), (SizeRange{-16, 24}));
  EXPECT_EQ(range("m - n"), (SizeRange{-10, 2}));
  EXPECT_EQ(range("(n - 1) / 2 + 1"), (SizeRange{1, 4}));
  EXPECT_EQ(range("max(m, 0)"), (SizeRange{0, 3}));
  EXPECT_EQ(range("s0 / n"), (SizeRange{0, 5}));
  EXPECT_EQ(range("m % n"), (SizeRange{0, 7}));
}

TEST(SizeExpression, ARangeThatMayDivideByZeroOrOverflowIsAnError) {
  auto fails = [](const char* text, std::vector<SizeRange> ranges) {
    try {
      SizeExpression::parse(text, kNames).range(ranges);
    } catch (const ExpressionError& thrown) {
      return std::string(thrown.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(fails("n / m", {{1, 2}, {-1, 1}, {0, 0}}), "the expression 'n / m' may divide by zero");
  EXPECT_EQ(fails("n * n", {{1, INT64_MAX}, {0, 0}, {0, 0}}), "the expression 'n * n' overflows");
}

// Makes a random expression, with its value from a second evaluation in 128 bits.
struct Tree {
  static std::optional<__int128> floor_divide(__int128 left, __int128 right) {
    if (right == 0) return std::nullopt;
    const __int128 quotient = left / right;
    return left % right != 0 && (left < 0) != (right < 0) ? quotient - 1 : quotient;
  }
  static std::optional<__int128> fitting(__int128 value) {
    if (value > INT64_MAX || value < INT64_MIN) return std::nullopt;
    return value;
  }
};

std::pair<std::string, std::optional<__int128>> random_expression(
    std::mt19937& random, int depth, const std::vector<std::int64_t>& values) {
  if (depth == 0 || random() % 5 == 0) {
    if (random() % 2 == 0) {
      const std::size_t variable = random() % kNames.size();
      return {kNames[variable], values[variable]};
    }
    const std::int64_t number = random() % 8 == 0 ? kLargest / 3 : random() % 50;
    return {std::to_string(number), number};
  }
  const auto [left, left_value] = random_expression(random, depth - 1, values);
  const auto [right, right_value] = random_expression(random, depth - 1, values);
  const char operation = "+-*/%<"[random() % 6];
  std::optional<__int128> value;
  if (left_value && right_value) {
    const auto quotient = Tree::floor_divide(*left_value, *right_value);
    switch (operation) {
      case '+':
        value = Tree::fitting(*left_value + *right_value);
        break;
      case '-':
        value = Tree::fitting(*left_value - *right_value);
        break;
      case '*':
        value = Tree::fitting(*left_value * *right_value);
        break;
      case '/':
        if (quotient) value = Tree::fitting(*quotient);
        break;
      case '%':
        if (quotient) value = *left_value - *quotient * *right_value;
        break;
      default:
        value = std::min(*left_value, *right_value);
    }
  }
  if (operation == '<') return {"min(" + left + ", " + right + ")", value};
  return {"(" + left + " " + operation + " " + right + ")", value};
}

TEST(SizeExpression, RandomExpressionsHaveTheValueOfTheirTree) {
  std::mt19937 random(3);
  int failures = 0;
  for (int round = 0; round < 3000; ++round) {
    const std::vector<std::int64_t> values{static_cast<std::int64_t>(random() % 100),
                                           static_cast<std::int64_t>(random() % 9) - 4,
                                           static_cast<std::int64_t>(random())};
    const auto [text, wanted] = random_expression(random, 4, values);
    const SizeExpression expression = SizeExpression::parse(text, kNames);
    if (!wanted) {
      ++failures;
      EXPECT_THROW(expression.evaluate(values), ExpressionError) << text;
      continue;
    }
    ASSERT_EQ(expression.evaluate(values), static_cast<std::int64_t>(*wanted)) << text;
    // The range over a wider box contains the value.
    std::vector<SizeRange> ranges;
    for (const std::int64_t each : values) ranges.push_back({each - 2, each + 2});
    try {
      const SizeRange range = expression.range(ranges);
      ASSERT_LE(range.lower, *wanted) << text;
      ASSERT_GE(range.upper, *wanted) << text;
    } catch (const ExpressionError&) {
      continue;
    }
  }
  EXPECT_GT(failures, 20);
}

}  // namespace
}  // namespace uvm
