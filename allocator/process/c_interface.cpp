#include "allocator/process/c_interface.hpp"

namespace uvm::c_interface {

thread_local char last_error[kLastErrorBytes];

uvmalloc_status null_argument(const char* function, const char* argument) noexcept {
  return failure(UVMALLOC_ERROR_INVALID_ARGUMENT, "{}: {} is NULL", function, argument);
}

uvmalloc_status not_ours(const char* function, const void* address) noexcept {
  return failure(UVMALLOC_ERROR_NOT_OURS, "{}: {} is in no block of this allocator", function,
                 address);
}

uvmalloc_status too_small(const char* function, std::size_t struct_bytes,
                          std::size_t least) noexcept {
  return failure(UVMALLOC_ERROR_INVALID_ARGUMENT,
                 "{}: struct_bytes is {}; it is the size of the structure, {} at least", function,
                 struct_bytes, least);
}

}  // namespace uvm::c_interface

const char* uvmalloc_last_error(void) noexcept {
  return uvm::c_interface::last_error;
}

const char* uvmalloc_status_name(int status) noexcept {
  switch (status) {
    case UVMALLOC_OK:
      return "UVMALLOC_OK";
    case UVMALLOC_ERROR_INVALID_ARGUMENT:
      return "UVMALLOC_ERROR_INVALID_ARGUMENT";
    case UVMALLOC_ERROR_OUT_OF_MEMORY:
      return "UVMALLOC_ERROR_OUT_OF_MEMORY";
    case UVMALLOC_ERROR_NO_DEVICE:
      return "UVMALLOC_ERROR_NO_DEVICE";
    case UVMALLOC_ERROR_NOT_USABLE:
      return "UVMALLOC_ERROR_NOT_USABLE";
    case UVMALLOC_ERROR_NOT_OURS:
      return "UVMALLOC_ERROR_NOT_OURS";
    case UVMALLOC_ERROR_DOUBLE_FREE:
      return "UVMALLOC_ERROR_DOUBLE_FREE";
    case UVMALLOC_ERROR_INTERIOR:
      return "UVMALLOC_ERROR_INTERIOR";
    case UVMALLOC_ERROR_INTERNAL:
      return "UVMALLOC_ERROR_INTERNAL";
  }
  return "unknown status";
}
