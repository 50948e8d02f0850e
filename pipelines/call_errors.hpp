// The C boundary of libuvmalloc_pipelines.so: turns exceptions into a return value and a message.
#pragma once

#include <cstddef>
#include <exception>
#include <string_view>

namespace uvm {

// Copies the string, cut to the capacity and ended by NUL. Does nothing if `buffer` is NULL or
// `capacity` is 0.
inline void write_text(std::string_view text, char* buffer, std::size_t capacity) noexcept {
  if (buffer == nullptr || capacity == 0) return;
  const std::size_t length = text.copy(buffer, capacity - 1);
  buffer[length] = '\0';
}

// Returns the result of `body`, or `failed` if it throws.
template <class Value, class Body>
Value call_guarded(Value failed, char* error, std::size_t capacity, Body body) noexcept {
  try {
    return body();
  } catch (const std::exception& thrown) {
    write_text(thrown.what(), error, capacity);
  } catch (...) {
    write_text("an unknown exception", error, capacity);
  }
  return failed;
}

}  // namespace uvm
