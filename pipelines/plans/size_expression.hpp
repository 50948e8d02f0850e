// A size that depends on named variables (TVM, "Symbolic shape runtime", Implementation 2 and 3):
// an infix text, which is compiled to postfix once and evaluated often. Whole numbers of 64 bits;
// no result is ever wrong by overflow.
//
//   sum     := product (("+" | "-") product)*
//   product := unary (("*" | "/" | "%") unary)*
//   unary   := "-" unary | number | name | "(" sum ")" | ("min" | "max") "(" sum "," sum ")"
//
// A name has letters, digits and "_", begins with no digit, and is neither "min" nor "max".
// "/" rounds down, "%" is what remains then: for both, a == a / b * b + a % b, and the remainder
// has the sign of b, as in Python. Immutable after parse(); may be used by several threads.
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

// All whole numbers from `lower` to `upper`.
struct SizeRange {
  std::int64_t lower = 0;
  std::int64_t upper = 0;
  friend bool operator==(const SizeRange&, const SizeRange&) = default;
};

class SizeExpression {
 public:
  static constexpr std::size_t kMostBytes = 4096;  // of the text
  static constexpr std::size_t kMostDepth = 64;    // of the stack, and of parentheses

  // `names` are the variables that the text may use. ExpressionError for anything else, with the
  // place in the text.
  static SizeExpression parse(std::string_view text, std::span<const std::string> names);

  // Whether an expression can use a variable of that name.
  static bool is_variable_name(std::string_view name);

  // `values` has a value for each of the names. ExpressionError for a division by zero and for
  // overflow.
  std::int64_t evaluate(std::span<const std::int64_t> values) const;

  // Bounds of evaluate() for all values within `ranges`, by interval arithmetic: sound, and exact
  // if each variable appears once. ExpressionError where evaluate() could fail by what these bounds
  // say.
  SizeRange range(std::span<const SizeRange> ranges) const;

  const std::string& text() const { return text_; }
  // The names that it uses, by their places, in ascending order.
  const std::vector<std::size_t>& variables() const { return variables_; }

 private:
  friend class SizeExpressionParser;
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
    std::int64_t operand = 0;  // the constant, or the variable's place
  };
  template <class Domain, class Value>
  Value run(std::span<const Value> values) const;

  std::string text_;
  std::vector<Step> steps_;  // postfix
  std::vector<std::size_t> variables_;
};

}  // namespace uvm
