// What an interposed function needs: the function that it stands before, and a way to work beside
// it that cannot make it fail. Thread-safe; owns nothing.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <string_view>

#include "runtime/log.hpp"

#define UVMALLOC_INTERPOSE extern "C" __attribute__((visibility("default")))

// The real function behind a call. Its type is that of its declaration in scope.
#define UVMALLOC_NEXT(function, library) UVMALLOC_NEXT_AS(function, library, decltype(&(function)))
// The same where a header overloads the name: `type` is the pointer that one declaration has.
#define UVMALLOC_NEXT_AS(function, library, type)                                         \
  ([]() noexcept {                                                                        \
    static constinit uvm::preload::NextFunction<decltype(static_cast<type>(&(function)))> \
        next_of_name{#function, library};                                                 \
    return next_of_name.get();                                                            \
  }())

namespace uvm::preload {

// The next definition of `symbol`: in the global scope after us; else in a mapped library whose
// file name starts with `library` (nullptr: in none), because libraries opened privately (by a
// Python import) are in no global scope; else in the first library that was mapped after us and has
// one, because some libraries define functions of CUDA themselves (CuPy for ROCm calls HIP in
// them). Returns nullptr if there is none. Needs no memory.
void* next_definition(const char* symbol, const char* library) noexcept;

// The definition behind a function of ours, kept once it is found: the libraries that define such
// functions are never unloaded. As long as there is none, each call looks again after more
// libraries have been mapped: a program may reach our function by a weak reference before it opens
// the library. Constant-initialized, and without a guard that a fork could leave taken.
class NextDefinition {
 public:
  constexpr NextDefinition(const char* symbol, const char* library)
      : symbol_(symbol), library_(library) {}

  // nullptr: there is none now. Needs no memory.
  void* get() noexcept {
    void* known = found_.load(std::memory_order_acquire);
    return known != nullptr ? known : look_up();
  }

 private:
  void* look_up() noexcept;

  const char* const symbol_;
  const char* const library_;
  std::atomic<void*> found_ = nullptr;
  std::atomic<std::uint64_t> missing_at_ = 0;  // libraries that had been mapped
};

template <class Function>
class NextFunction : NextDefinition {
 public:
  using NextDefinition::NextDefinition;
  Function get() noexcept { return reinterpret_cast<Function>(NextDefinition::get()); }
};

// Passes a call of CUDA on. A library that is not there is answered for: 3 is both
// cudaErrorInitializationError and CUDA_ERROR_NOT_INITIALIZED.
template <class Result, class... Parameters, class... Arguments>
Result pass_on(Result (*next)(Parameters...), Arguments... arguments) {
  constexpr int kNotInitialized = 3;
  return next != nullptr ? next(arguments...) : static_cast<Result>(kNotInitialized);
}

// The file's name of a library's path, which may be nullptr.
inline std::string_view file_name(const char* path) noexcept {
  const std::string_view whole = path != nullptr ? path : "";
  return whole.substr(whole.rfind('/') + 1);
}

// Runs `body` beside a call of C that is passed on. If it fails, for want of memory, the call goes
// on as without us.
template <class Body>
void beside(const char* call, Body body) noexcept {
  try {
    body();
  } catch (const std::exception& error) {
    log(LogLevel::kWarning, "{} goes on without uvmalloc: {}", call, error.what());
  }
}

}  // namespace uvm::preload
