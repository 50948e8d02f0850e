// An interposed allocation call that is left to its runtime. It is counted, so that the report can
// say how much of a program's memory is not served.
#pragma once

#include "preload/served_answers.hpp"

// Passes the call of `function` on to `next`, a NEXT_OF_ macro of its vendor.hpp.
#define UVMALLOC_LEAVE(function, next, ...)                                                   \
  uvm::preload::Forward<decltype(&(function))>::call(UVMALLOC_CALL(function), next(function), \
                                                     __VA_ARGS__)

namespace uvm::preload {

template <class Function>
struct Forward;
template <class Result, class... Parameters>
struct Forward<Result (*)(Parameters...)> {
  static Result call(Call call, Result (*next)(Parameters...), Parameters... arguments) {
    leave(call);
    return pass_on(next, arguments...);
  }
};

}  // namespace uvm::preload
