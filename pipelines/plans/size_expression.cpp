#include "pipelines/plans/size_expression.hpp"

#include <algorithm>
#include <array>
#include <limits>

#include <fmt/format.h>

namespace uvm {
namespace {

constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min();

struct Fault {
  const char* what;
};

// Rounds down, so the remainder has the divisor's sign.
std::int64_t divide(std::int64_t left, std::int64_t right) {
  if (right == 0) throw Fault{"divides by zero"};
  if (left == kLeast && right == -1) throw Fault{"overflows"};
  const std::int64_t quotient = left / right;
  return left % right != 0 && (left < 0) != (right < 0) ? quotient - 1 : quotient;
}

std::int64_t add(std::int64_t left, std::int64_t right) {
  std::int64_t sum = 0;
  if (__builtin_add_overflow(left, right, &sum)) throw Fault{"overflows"};
  return sum;
}
std::int64_t subtract(std::int64_t left, std::int64_t right) {
  std::int64_t difference = 0;
  if (__builtin_sub_overflow(left, right, &difference)) throw Fault{"overflows"};
  return difference;
}
std::int64_t multiply(std::int64_t left, std::int64_t right) {
  std::int64_t product = 0;
  if (__builtin_mul_overflow(left, right, &product)) throw Fault{"overflows"};
  return product;
}

struct Numbers {
  using Value = std::int64_t;
  static Value constant(std::int64_t value) { return value; }
  static Value negate(Value value) { return uvm::subtract(0, value); }
  static Value add(Value left, Value right) { return uvm::add(left, right); }
  static Value subtract(Value left, Value right) { return uvm::subtract(left, right); }
  static Value multiply(Value left, Value right) { return uvm::multiply(left, right); }
  static Value divide(Value left, Value right) { return uvm::divide(left, right); }
  static Value remainder(Value left, Value right) {
    if (right == 0) throw Fault{"divides by zero"};
    if (right == -1) return 0;
    const std::int64_t rest = left % right;
    return rest != 0 && (rest < 0) != (right < 0) ? rest + right : rest;
  }
  static Value minimum(Value left, Value right) { return std::min(left, right); }
  static Value maximum(Value left, Value right) { return std::max(left, right); }
};

struct Ranges {
  using Value = SizeRange;
  static Value constant(std::int64_t value) { return {value, value}; }
  static Value negate(Value value) {
    return {uvm::subtract(0, value.upper), uvm::subtract(0, value.lower)};
  }
  static Value add(Value left, Value right) {
    return {uvm::add(left.lower, right.lower), uvm::add(left.upper, right.upper)};
  }
  static Value subtract(Value left, Value right) {
    return {uvm::subtract(left.lower, right.upper), uvm::subtract(left.upper, right.lower)};
  }
  static Value multiply(Value left, Value right) { return corners(left, right, uvm::multiply); }
  static Value divide(Value left, Value right) {
    if (right.lower <= 0 && right.upper >= 0) throw Fault{"may divide by zero"};
    return corners(left, right, uvm::divide);
  }
  static Value remainder(Value left, Value right) {
    if (right.lower <= 0 && right.upper >= 0) throw Fault{"may divide by zero"};
    // The remainder has the divisor's sign and is closer to 0 than the divisor.
    if (right.upper < 0) return {uvm::add(right.lower, 1), 0};
    if (left.lower >= 0 && left.upper < right.lower) return left;
    return {0, std::min(right.upper - 1, left.lower >= 0 ? left.upper : right.upper - 1)};
  }
  static Value minimum(Value left, Value right) {
    return {std::min(left.lower, right.lower), std::min(left.upper, right.upper)};
  }
  static Value maximum(Value left, Value right) {
    return {std::max(left.lower, right.lower), std::max(left.upper, right.upper)};
  }

 private:
  template <class Function>
  static Value corners(Value left, Value right, Function function) {
    const auto [least, most] = std::minmax({
        function(left.lower, right.lower),
        function(left.lower, right.upper),
        function(left.upper, right.lower),
        function(left.upper, right.upper),
    });
    return {least, most};
  }
};

}  // namespace

template <class Domain, class Value>
Value SizeExpression::run(std::span<const Value> values) const {
  std::array<Value, kMostDepth> stack;
  std::size_t top = 0;
  auto apply = [&](auto function) {
    --top;
    stack[top - 1] = function(stack[top - 1], stack[top]);
  };
  try {
    for (const Step& step : steps_) {
      switch (step.operation) {
        case Operation::kConstant:
          stack[top++] = Domain::constant(step.operand);
          break;
        case Operation::kVariable:
          stack[top++] = values[static_cast<std::size_t>(step.operand)];
          break;
        case Operation::kNegate:
          stack[top - 1] = Domain::negate(stack[top - 1]);
          break;
        case Operation::kAdd:
          apply(Domain::add);
          break;
        case Operation::kSubtract:
          apply(Domain::subtract);
          break;
        case Operation::kMultiply:
          apply(Domain::multiply);
          break;
        case Operation::kDivide:
          apply(Domain::divide);
          break;
        case Operation::kRemainder:
          apply(Domain::remainder);
          break;
        case Operation::kMinimum:
          apply(Domain::minimum);
          break;
        case Operation::kMaximum:
          apply(Domain::maximum);
          break;
      }
    }
  } catch (const Fault& fault) {
    throw ExpressionError(fmt::format("the expression '{}' {}", text_, fault.what));
  }
  return stack[0];
}

std::int64_t SizeExpression::evaluate(std::span<const std::int64_t> values) const {
  return run<Numbers, std::int64_t>(values);
}

SizeRange SizeExpression::range(std::span<const SizeRange> ranges) const {
  return run<Ranges, SizeRange>(ranges);
}

}  // namespace uvm
