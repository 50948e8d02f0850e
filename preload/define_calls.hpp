// Defines the exported functions of calls.def. A .cpp file of an interface includes the interface's
// header and the handlers, defines a macro for the rows, and includes the table:
//   #define HIP(name, ...) UVMALLOC_DEFINE_##forms(Runtime, name, parameters, handler)
// Each function has the type of its declaration, and returns handler(call, arguments...).
#pragma once

#include <cstddef>
#include <tuple>

#include <uvmalloc/device_runtime.hpp>
#include "preload/calls.hpp"
#include "preload/interpose.hpp"

namespace uvm::preload {

template <class Function>
struct Signature;
template <class Returned, class... Parameters>
struct Signature<Returned(Parameters...)> {
  using Result = Returned;
  template <std::size_t kIndex>
  using Parameter = std::tuple_element_t<kIndex, std::tuple<Parameters...>>;
};

// A program's call of an intercepted function, as the handler receives it. `Interface`
// (cuda/runtime.hpp, cuda/driver.hpp, hip/runtime.hpp) supplies what differs between interfaces.
template <class Interface, Call kCall, class Function, bool kIsPerThread>
struct Intercepted : Interface {
  using Result = typename Signature<Function>::Result;

  const void* caller;  // return address of the call

  static constexpr Call number() { return kCall; }
  static const char* name() { return intercepted_calls[kCall].name; }
  static Result success() { return Result{}; }

  // Returns the real function, or nullptr if its library is not loaded.
  static Function* real() noexcept {
    return reinterpret_cast<Function*>(intercepted_calls[kCall].real.get());
  }
  template <class... Arguments>
  static Result forward(Arguments... arguments) {
    return pass_on(real(), arguments...);
  }

  // Returns the handle that identifies the stream to the allocator.
  static StreamHandle order(StreamHandle stream) {
    return kIsPerThread && stream == nullptr ? kPerThreadStream : stream;
  }
};

}  // namespace uvm::preload

// Defines `symbol`, a function of the type `function`.
#define UVMALLOC_DEFINE(interface, symbol, function, is_per_thread, parameters, handler) \
  UVMALLOC_INTERPOSE uvm::preload::Signature<function>::Result symbol(                   \
      UVMALLOC_PARAMETERS_##parameters(uvm::preload::Signature<function>::Parameter)) {  \
    const uvm::preload::Intercepted<interface, uvm::preload::kCall_##symbol, function,   \
                                    is_per_thread>                                       \
        call{{}, __builtin_return_address(0)};                                           \
    return handler(call UVMALLOC_ARGUMENTS_##parameters);                                \
  }

// Define the functions of a row, depending on its forms.
#define UVMALLOC_DEFINE_ONE(interface, name, parameters, handler) \
  UVMALLOC_DEFINE(interface, name, decltype(name), false, parameters, handler)
#define UVMALLOC_DEFINE_OWN(interface, name, parameters, handler)
#define UVMALLOC_DEFINE_PTSZ(interface, name, parameters, handler) \
  UVMALLOC_DEFINE_ONE(interface, name, parameters, handler)        \
  UVMALLOC_DEFINE(interface, name##_ptsz, decltype(name), true, parameters, handler)
#define UVMALLOC_DEFINE_SPT(interface, name, parameters, handler) \
  UVMALLOC_DEFINE_ONE(interface, name, parameters, handler)       \
  UVMALLOC_DEFINE(interface, name##_spt, decltype(name), true, parameters, handler)

// Parentheses are not allowed around names of types and functions.
// NOLINTBEGIN(bugprone-macro-parentheses)
#define UVMALLOC_PARAMETERS_0(type)
#define UVMALLOC_PARAMETERS_1(type) type<0> a
#define UVMALLOC_PARAMETERS_2(type) UVMALLOC_PARAMETERS_1(type), type<1> b
#define UVMALLOC_PARAMETERS_3(type) UVMALLOC_PARAMETERS_2(type), type<2> c
#define UVMALLOC_PARAMETERS_4(type) UVMALLOC_PARAMETERS_3(type), type<3> d
#define UVMALLOC_PARAMETERS_5(type) UVMALLOC_PARAMETERS_4(type), type<4> e
#define UVMALLOC_PARAMETERS_6(type) UVMALLOC_PARAMETERS_5(type), type<5> f
#define UVMALLOC_PARAMETERS_7(type) UVMALLOC_PARAMETERS_6(type), type<6> g
#define UVMALLOC_PARAMETERS_10(type) UVMALLOC_PARAMETERS_7(type), type<7> h, type<8> i, type<9> j
#define UVMALLOC_PARAMETERS_11(type) UVMALLOC_PARAMETERS_10(type), type<10> k
// NOLINTEND(bugprone-macro-parentheses)

#define UVMALLOC_ARGUMENTS_0
#define UVMALLOC_ARGUMENTS_1 , a
#define UVMALLOC_ARGUMENTS_2 UVMALLOC_ARGUMENTS_1, b
#define UVMALLOC_ARGUMENTS_3 UVMALLOC_ARGUMENTS_2, c
#define UVMALLOC_ARGUMENTS_4 UVMALLOC_ARGUMENTS_3, d
#define UVMALLOC_ARGUMENTS_5 UVMALLOC_ARGUMENTS_4, e
#define UVMALLOC_ARGUMENTS_6 UVMALLOC_ARGUMENTS_5, f
#define UVMALLOC_ARGUMENTS_7 UVMALLOC_ARGUMENTS_6, g
#define UVMALLOC_ARGUMENTS_10 UVMALLOC_ARGUMENTS_7, h, i, j
#define UVMALLOC_ARGUMENTS_11 UVMALLOC_ARGUMENTS_10, k
