// Closes a file descriptor at the end of its scope, and leaves errno unchanged.
#pragma once

#include <unistd.h>

#include <utility>

#include "allocator/base/errno_guard.hpp"

namespace uvm {

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}  // -1: none
  Descriptor(Descriptor&& other) noexcept : number_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor() {
    const ErrnoGuard errno_guard;
    if (number_ >= 0) close(number_);
  }

  bool is_open() const { return number_ >= 0; }
  int get() const { return number_; }
  int release() { return std::exchange(number_, -1); }

 private:
  int number_;
};

}  // namespace uvm
