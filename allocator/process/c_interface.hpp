// Shared code of the C interface: status codes, the message of the last error, and guarded(), which
// lets no exception out. Thread-safe: each thread has its own message.
#pragma once

#include <cstddef>
#include <exception>
#include <new>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include <uvmalloc/uvmalloc.h>

namespace uvm::c_interface {

// The message of this thread's last error. The array has no destructor, because exit handlers and
// the last destructors of a thread may still fail and read the message.
inline constexpr std::size_t kLastErrorBytes = 4096;
extern thread_local char last_error[kLastErrorBytes];

// Returns `status` and stores its message, cut to kLastErrorBytes, or empty if memory is short.
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
// `struct_bytes` of a caller's structure is less than the size of the structure's first version.
uvmalloc_status too_small(const char* function, std::size_t struct_bytes,
                          std::size_t least) noexcept;

// Thrown to end a function with a status. The message of the status is already stored.
struct Failed {
  uvmalloc_status status;
};

// Runs the body of an interface function and turns its exceptions into a status.
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
