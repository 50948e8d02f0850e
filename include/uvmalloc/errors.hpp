// Errors that a caller of the allocator can act on.
#pragma once

#include <cstddef>
#include <new>
#include <string>

namespace uvm {

// Thrown if the budget has no room, or the driver refuses memory, after all cached memory was given
// back. Blocks in use are not affected. what() says who holds how much memory, and which setting
// allows more.
class OutOfMemoryError : public std::bad_alloc {
 public:
  OutOfMemoryError(std::size_t requested_bytes, std::string message, bool is_beyond_limit = false)
      : requested_bytes_(requested_bytes),
        message_(std::move(message)),
        is_beyond_limit_(is_beyond_limit) {}
  const char* what() const noexcept override { return message_.c_str(); }
  std::size_t requested_bytes() const { return requested_bytes_; }
  // True: a limit of this allocator, such as the budget, refused the request; false: the driver.
  bool is_beyond_limit() const { return is_beyond_limit_; }

 private:
  std::size_t requested_bytes_;
  std::string message_;
  bool is_beyond_limit_;
};

// The result of a free.
enum class FreeResult : unsigned char {
  kFreed,
  kNotOurs,   // the address is not in this allocator's memory: pass it to its owner
  kDouble,    // already free; nothing was freed
  kInterior,  // inside a block, not its start; nothing was freed
};

}  // namespace uvm
