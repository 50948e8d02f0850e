// The host's memory: its size, and the bytes in managed blocks and pinned memory. As in the
// modelled driver, a page that migrates to a device keeps its host memory until the page is freed.
// Accounting only. Guarded by the machine's mutex.
#pragma once

#include <algorithm>
#include <cstddef>

namespace uvmsim {

class HostMemory {
 public:
  explicit HostMemory(std::size_t capacity_bytes) : capacity_bytes_(capacity_bytes) {}

  std::size_t capacity_bytes() const { return capacity_bytes_; }
  void set_capacity(std::size_t bytes) { capacity_bytes_ = bytes; }
  std::size_t used_bytes() const { return used_bytes_; }
  std::size_t peak_bytes() const { return peak_bytes_; }
  void reset_peak() { peak_bytes_ = used_bytes_; }

  bool could_hold(std::size_t bytes) const {
    return used_bytes_ <= capacity_bytes_ && bytes <= capacity_bytes_ - used_bytes_;
  }

  // Returns false, and changes nothing, if fewer bytes are free.
  bool take(std::size_t bytes) {
    if (!could_hold(bytes)) return false;
    used_bytes_ += bytes;
    peak_bytes_ = std::max(peak_bytes_, used_bytes_);
    return true;
  }
  void release(std::size_t bytes) { used_bytes_ -= bytes; }

 private:
  std::size_t capacity_bytes_;
  std::size_t used_bytes_ = 0;
  std::size_t peak_bytes_ = 0;
};

}  // namespace uvmsim
