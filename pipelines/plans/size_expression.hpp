// A size that depends on named variables (TVM, "Symbolic shape runtime", Implementation 2 and 3).
// The infix expression is compiled to postfix once and evaluated often. Values are integers of 64
// bits; overflow is an error.
//
//   sum     := product (("+" | "-") product)*
//   product := unary (("*" | "/" | "%") unary)*
//   unary   := "-" unary | number | name | "(" sum ")" | ("min" | "max") "(" sum "," sum ")"
//
// A name consists of letters, digits and "_", does not begin with a digit, and is neither "min" nor
// "max". As in Python, "/" rounds down and the result of "%" has the sign of its divisor: a == a /
// b * b + a % b. Immutable after parse(); may be used by several threads.
#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace uvm {

// The message names the expression and the fault.
struct ExpressionError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

// Contains all integers from `lower` to `upper`, both included.
struct SizeRange {
  std::int64_t lower = 0;
  std::int64_t upper = 0;
  friend bool operator==(const SizeRange&, const SizeRange&) = default;
};

class SizeExpression {
 public:
  static constexpr std::size_t kMostBytes = 4096;  // limit of the string
  static constexpr std::size_t kMostDepth = 64;    // limit of the stack, and of nested parentheses

  // Parses the string, which may use the variables in `names`. If the string does not follow the
  // grammar, throws ExpressionError, which tells the position in the string.
  static SizeExpression parse(std::string_view text, std::span<const std::string> names);

  // Returns whether an expression can use a variable of that name.
  static bool is_variable_name(std::string_view name);

  // `values` has a value for each name. Throws ExpressionError on division by zero and on overflow.
  std::int64_t evaluate(std::span<const std::int64_t> values) const;

  // Returns bounds of evaluate() over all values within `ranges`, by interval arithmetic. The
  // bounds are tight if no variable appears twice and no "%" is used. Throws ExpressionError if
  // evaluate() could fail within `ranges`.
  SizeRange range(std::span<const SizeRange> ranges) const;

  const std::string& text() const { return text_; }
  // Returns the indices of the names that the expression uses, ascending.
  const std::vector<std::size_t>& variables() const { return variables_; }

 private:
  class Parser;
  enum class Operation : std::uint8_t {
    kConstant,
    kVariable,
    kNegate,
    kAdd,
    kSubtract,
    kMultiply,
    kDivide,
    kRemainder,
    kMinimum,
    kMaximum,
  };
  struct Step {
    Operation operation;
    std::int64_t operand = 0;  // the constant, or the variable's index
  };
  template <class Domain, class Value>
  Value run(std::span<const Value> values) const;

  std::string text_;
  std::vector<Step> steps_;  // postfix
  std::vector<std::size_t> variables_;
};

}  // namespace uvm
