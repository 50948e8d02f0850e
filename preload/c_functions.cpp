// The C functions that libuvmalloc.so offers to tools.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include <uvmalloc/allocator/process_allocator.hpp>

#define UVMALLOC_API extern "C" __attribute__((visibility("default")))

namespace {

// Copies as much of `text` as fits, always ended by NUL, and returns the bytes that all of it
// needs.
std::int64_t copy_out(const std::string& text, char* buffer, std::size_t capacity) {
  if (buffer != nullptr && capacity != 0) {
    std::size_t count = text.size() < capacity ? text.size() : capacity - 1;
    std::memcpy(buffer, text.data(), count);
    buffer[count] = '\0';
  }
  return static_cast<std::int64_t>(text.size()) + 1;
}

}  // namespace

UVMALLOC_API const char* uvmalloc_version(void) {
  return uvm::version();
}

// What this machine can do and what is configured, as JSON. Returns the bytes needed, NUL included.
UVMALLOC_API std::int64_t uvmalloc_doctor_json(char* buffer, std::size_t capacity) {
  return copy_out(uvm::doctor_json(), buffer, capacity);
}

// The report on this process so far, as JSON; likewise.
UVMALLOC_API std::int64_t uvmalloc_report_json(char* buffer, std::size_t capacity) {
  return copy_out(uvm::report_json(), buffer, capacity);
}

// Whether host memory that a framework allocates on this thread is managed (1, as at the start) or
// comes from malloc (0). Returns what was.
UVMALLOC_API int uvmalloc_set_host_managed(int managed) {
  return uvm::set_host_managed(managed != 0);
}
