// What an intercepting function needs: the real function, and beside(), which runs uvmalloc's work
// so that a failure of this work does not make the call fail. Thread-safe; owns nothing.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <string_view>

#include "runtime/log.hpp"

#define UVMALLOC_INTERPOSE extern "C" __attribute__((visibility("default")))

// Returns the real function of this name, with the type that its declaration gives it.
#define UVMALLOC_NEXT(function, library)                                                       \
  ([]() noexcept {                                                                             \
    static constinit uvm::preload::NextFunction<decltype(&(function))> next_of_name{#function, \
                                                                                    library};  \
    return next_of_name.get();                                                                 \
  }())

namespace uvm::preload {

// Returns the real definition of `symbol`, or nullptr. Searches, in this order:
//   the global scope after this library; a mapped library with a file name that starts with
//   `library`, unless `library` is nullptr: a Python import opens libraries outside the global
//   scope; the libraries mapped after this one. This finds a definition in a library with another
//   name. For example, CuPy for ROCm defines CUDA's functions itself, and calls HIP.
// Allocates nothing.
void* next_definition(const char* symbol, const char* library) noexcept;

// The real definition of an intercepted function, cached when found, because libraries that define
// such functions are never unloaded. Until it is found, each call searches again if more libraries
// were mapped, because a weak reference can reach uvmalloc's function before the program opens the
// library. Constant-initialized, because a guard of a local static could stay locked in a forked
// child.
class NextDefinition {
 public:
  constexpr NextDefinition(const char* symbol, const char* library)
      : symbol_(symbol), library_(library) {}

  // Returns nullptr if the function is not defined yet. Allocates nothing.
  void* get() noexcept {
    void* known = found_.load(std::memory_order_acquire);
    return known != nullptr ? known : look_up();
  }

 private:
  void* look_up() noexcept;

  const char* const symbol_;
  const char* const library_;
  std::atomic<void*> found_ = nullptr;
  std::atomic<std::uint64_t> missing_at_ = 0;  // count of mapped libraries at the last failure
};

template <class Function>
class NextFunction : NextDefinition {
 public:
  using NextDefinition::NextDefinition;
  Function get() noexcept { return reinterpret_cast<Function>(NextDefinition::get()); }
};

// Forwards a call. If the library is absent, returns 3, which is both cudaErrorInitializationError
// and CUDA_ERROR_NOT_INITIALIZED.
template <class Result, class... Parameters, class... Arguments>
Result pass_on(Result (*next)(Parameters...), Arguments... arguments) {
  constexpr int kNotInitialized = 3;
  return next != nullptr ? next(arguments...) : static_cast<Result>(kNotInitialized);
}

// Returns the number that a query writes to its last argument, or -1 if the query fails.
template <class Query, class... Arguments>
int number_of(Query query, Arguments... arguments) noexcept {
  int answer = -1;
  return pass_on(query, arguments..., &answer) == 0 ? answer : -1;
}

// Returns the stream's device from the query `next`, or current() for stream 0 or if `next` fails.
template <class Query, class Stream>
int device_of_stream(Query next, Stream stream, int (*current)() noexcept) noexcept {
  const int known = stream != nullptr ? number_of(next, stream) : -1;
  return known >= 0 ? known : current();
}

// Calls `next` and returns whether the stream is being captured. In every interface a result of 0
// means success, and a status of 0 means that no capture is running.
template <class Result, class Stream, class Status>
bool is_captured(Result (*next)(Stream, Status*), Stream stream) {
  Status status{};
  return pass_on(next, stream, &status) == Result{} && status != Status{};
}

// Returns the file name in a library's path. `path` may be nullptr.
inline std::string_view file_name(const char* path) noexcept {
  const std::string_view whole = path != nullptr ? path : "";
  return whole.substr(whole.rfind('/') + 1);
}

// Runs `body`, uvmalloc's work during a forwarded call. If `body` throws, usually because memory
// ran out, logs the exception; the call itself continues.
template <class Body>
void beside(const char* call, Body body) noexcept {
  try {
    body();
  } catch (const std::exception& error) {
    log(LogLevel::kWarning, "{} continues without uvmalloc: {}", call, error.what());
  }
}

}  // namespace uvm::preload
