// What the functions of the C interface share: statuses, the text of the last error, and no
// exception beyond them.
#pragma once

#include <cstddef>
#include <exception>
#include <new>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include <uvmalloc/uvmalloc.h>

namespace uvm::c_interface {

// The text of this thread's last error. Without a destructor: exit handlers and other threads' last
// destructors may still fail and ask.
inline constexpr std::size_t kLastErrorBytes = 4096;
extern thread_local char last_error[kLastErrorBytes];

// Returns `status` and keeps its text, cut to the room there is; none if even that finds no memory.
template <class... Arguments>
uvmalloc_status failure(uvmalloc_status status, fmt::format_string<Arguments...> format,
                        Arguments&&... arguments) noexcept {
  try {
    const auto end = fmt::format_to_n(last_error, kLastErrorBytes - 1, format,
                                      std::forward<Arguments>(arguments)...);
    *end.out = '\0';
  } catch (...) {
    last_error[0] = '\0';
  }
  return status;
}

uvmalloc_status null_argument(const char* function, const char* argument) noexcept;
uvmalloc_status not_ours(const char* function, const void* address) noexcept;

// Ends a function with a status whose text is kept already.
struct Failed {
  uvmalloc_status status;
};

// Runs the body of a function of the interface. What it throws becomes a status.
template <class Body>
uvmalloc_status guarded(Body body) noexcept {
  try {
    return body();
  } catch (const Failed& failed) {
    return failed.status;
  } catch (const std::bad_alloc& error) {
    return failure(UVMALLOC_ERROR_OUT_OF_MEMORY, "{}", error.what());
  } catch (const std::invalid_argument& error) {
    return failure(UVMALLOC_ERROR_INVALID_ARGUMENT, "{}", error.what());
  } catch (const std::runtime_error& error) {
    return failure(UVMALLOC_ERROR_NOT_USABLE, "{}", error.what());
  } catch (const std::exception& error) {
    return failure(UVMALLOC_ERROR_INTERNAL, "{}", error.what());
  } catch (...) {
    return failure(UVMALLOC_ERROR_INTERNAL, "an unknown exception");
  }
}

}  // namespace uvm::c_interface
