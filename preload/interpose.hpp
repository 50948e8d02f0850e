// What an interposed function needs: the function that it stands before, and a way to work beside
// it that cannot make it fail. Thread-safe; owns nothing.
#pragma once

#include <exception>
#include <string_view>

#include <uvmalloc/runtime/log.hpp>

#define UVMALLOC_INTERPOSE extern "C" __attribute__((visibility("default")))

// The real function behind a call, looked up once. Its type is that of its declaration in scope.
#define UVMALLOC_NEXT(function, library) UVMALLOC_NEXT_AS(function, library, decltype(&(function)))
// The same where a header overloads the name: `type` is the pointer that one declaration has.
#define UVMALLOC_NEXT_AS(function, library, type)                                                  \
  ([]() noexcept {                                                                                 \
    static const auto kNext =                                                                      \
        uvm::preload::next_function<decltype(static_cast<type>(&(function)))>(#function, library); \
    return kNext;                                                                                  \
  }())

namespace uvm::preload {

// The next definition of `symbol`: in the global scope after us, else in a mapped library whose
// file name starts with `library`. Libraries opened privately (by a Python import) are in no global
// scope. Returns nullptr if there is none. Needs no memory.
void* next_definition(const char* symbol, const char* library) noexcept;

// The definition in the first library that was mapped after us and has one, whichever its name.
// Some libraries define functions of CUDA themselves: CuPy for ROCm calls HIP in them. Needs no
// memory.
void* later_definition(const char* symbol) noexcept;

// The function behind a call. Look it up on first use: the libraries that define such functions are
// never unloaded.
template <class Function>
Function next_function(const char* symbol, const char* library) noexcept {
  void* found = next_definition(symbol, library);
  if (found == nullptr) found = later_definition(symbol);
  return reinterpret_cast<Function>(found);
}

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
