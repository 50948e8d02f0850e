#include <algorithm>
#include <charconv>
#include <span>
#include <string>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pipelines/plans/size_expression.hpp"

namespace uvm {
namespace {

bool is_digit(char character) {
  return character >= '0' && character <= '9';
}
bool is_name(char character) {
  return is_digit(character) || (character >= 'a' && character <= 'z') ||
         (character >= 'A' && character <= 'Z') || character == '_';
}
bool is_function(std::string_view name) {
  return name == "min" || name == "max";
}

}  // namespace

// Compiles one expression to postfix, from left to right, in one pass.
class SizeExpression::Parser {
 public:
  Parser(std::string_view text, std::span<const std::string> names) : text_(text), names_(names) {
    made_.text_ = text.substr(0, kMostBytes);
  }
  SizeExpression parse();

 private:
  void sum();
  void product();
  void unary();
  void number();
  void name();
  void two_arguments(Operation operation);
  bool take(char wanted);
  void expect(char wanted);
  void skip_blanks();
  void add(Operation operation, std::int64_t operand = 0);
  [[noreturn]] void fail(std::string_view what) const;

  std::string_view text_;
  std::span<const std::string> names_;
  std::size_t place_ = 0;
  std::size_t nesting_ = 0;
  std::size_t depth_ = 0;  // depth of the stack after the current steps
  SizeExpression made_;
};

SizeExpression SizeExpression::parse(std::string_view text, std::span<const std::string> names) {
  return Parser(text, names).parse();
}

bool SizeExpression::is_variable_name(std::string_view name) {
  return !name.empty() && !is_digit(name.front()) && !is_function(name) &&
         std::all_of(name.begin(), name.end(), is_name);
}

SizeExpression SizeExpression::Parser::parse() {
  if (text_.size() > kMostBytes) {
    fail(fmt::format("is longer than {} bytes", kMostBytes));
  }
  sum();
  skip_blanks();
  if (place_ != text_.size()) fail("has text after the expression");
  auto& variables = made_.variables_;
  std::sort(variables.begin(), variables.end());
  variables.erase(std::unique(variables.begin(), variables.end()), variables.end());
  return std::move(made_);
}

void SizeExpression::Parser::sum() {
  if (++nesting_ > kMostDepth) fail("is nested too deeply");
  product();
  while (true) {
    if (take('+')) {
      product();
      add(Operation::kAdd);
    } else if (take('-')) {
      product();
      add(Operation::kSubtract);
    } else {
      break;
    }
  }
  --nesting_;
}

void SizeExpression::Parser::product() {
  unary();
  while (true) {
    if (take('*')) {
      unary();
      add(Operation::kMultiply);
    } else if (take('/')) {
      take('/');  // "//", as in Python
      unary();
      add(Operation::kDivide);
    } else if (take('%')) {
      unary();
      add(Operation::kRemainder);
    } else {
      return;
    }
  }
}

void SizeExpression::Parser::unary() {
  skip_blanks();
  std::size_t signs = 0;
  while (take('-')) ++signs;
  skip_blanks();
  if (take('(')) {
    sum();
    expect(')');
  } else if (place_ < text_.size() && is_digit(text_[place_])) {
    number();
  } else if (place_ < text_.size() && is_name(text_[place_])) {
    name();
  } else {
    fail(place_ < text_.size() ? "has no number, name or '('" : "ends too early");
  }
  for (; signs != 0; --signs) add(Operation::kNegate);
}

void SizeExpression::Parser::number() {
  std::int64_t value = 0;
  const char* const begin = text_.data() + place_;
  const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
  if (error != std::errc()) fail("has a number above 2^63 - 1");
  place_ += static_cast<std::size_t>(end - begin);
  add(Operation::kConstant, value);
}

void SizeExpression::Parser::name() {
  const std::size_t begin = place_;
  while (place_ < text_.size() && is_name(text_[place_])) ++place_;
  const std::string_view found = text_.substr(begin, place_ - begin);
  if (is_function(found)) {
    two_arguments(found == "min" ? Operation::kMinimum : Operation::kMaximum);
    return;
  }
  const auto known = std::find(names_.begin(), names_.end(), found);
  if (known == names_.end()) {
    place_ = begin;
    fail(fmt::format("uses the unknown variable '{}'; known: {}", found, fmt::join(names_, ", ")));
  }
  const auto variable = static_cast<std::size_t>(known - names_.begin());
  made_.variables_.push_back(variable);
  add(Operation::kVariable, static_cast<std::int64_t>(variable));
}

void SizeExpression::Parser::two_arguments(Operation operation) {
  expect('(');
  sum();
  expect(',');
  sum();
  expect(')');
  add(operation);
}

void SizeExpression::Parser::skip_blanks() {
  while (place_ < text_.size() && (text_[place_] == ' ' || text_[place_] == '\t')) ++place_;
}

bool SizeExpression::Parser::take(char wanted) {
  skip_blanks();
  if (place_ == text_.size() || text_[place_] != wanted) return false;
  ++place_;
  return true;
}

void SizeExpression::Parser::expect(char wanted) {
  if (!take(wanted)) fail(fmt::format("has no '{}'", wanted));
}

void SizeExpression::Parser::add(Operation operation, std::int64_t operand) {
  if (operation == Operation::kConstant || operation == Operation::kVariable) {
    if (++depth_ > kMostDepth) fail("is nested too deeply");
  } else if (operation != Operation::kNegate) {
    --depth_;
  }
  made_.steps_.push_back({operation, operand});
}

void SizeExpression::Parser::fail(std::string_view what) const {
  throw ExpressionError(
      fmt::format("the expression '{}' {} (at character {})", made_.text_, what, place_ + 1));
}

}  // namespace uvm
