// Compiles the text of one SizeExpression to postfix, from left to right, in one pass.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "pipelines/plans/size_expression.hpp"

namespace uvm {

class SizeExpressionParser {
 public:
  SizeExpressionParser(std::string_view text, std::span<const std::string> names);
  SizeExpression parse();

 private:
  using Operation = SizeExpression::Operation;

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
  std::size_t depth_ = 0;  // of the stack after the steps so far
  SizeExpression made_;
};

}  // namespace uvm
