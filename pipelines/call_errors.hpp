// How functions of libuvmalloc_pipelines.so fail: what C++ throws becomes a value and a sentence.
#pragma once

#include <cstddef>
#include <exception>
#include <string_view>

namespace uvm {

// Ends the text by NUL and cuts it to the capacity; nothing for a buffer that is NULL or a capacity
// of 0.
inline void write_text(std::string_view text, char* buffer, std::size_t capacity) noexcept {
  if (buffer == nullptr || capacity == 0) return;
  const std::size_t length = text.copy(buffer, capacity - 1);
  buffer[length] = '\0';
}

// What `body` returns; `failed` where it throws.
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
