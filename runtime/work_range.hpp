// Shows uvmalloc's own work in profilers, as NVTX ranges of the domain "uvmalloc" (UVMALLOC_NVTX).
// A range belongs to the thread that does the work. While ranges are off, a WorkRange costs one
// memory load. Thread-safe.
#pragma once

#include <atomic>
#include <cstddef>

namespace uvm {

class WorkRange {
 public:
  // `name` needs to live only during the constructor. The range shows `size_bytes` if it is not 0.
  explicit WorkRange(const char* name, std::size_t size_bytes = 0) noexcept
      : is_open_(is_on_.load(std::memory_order_relaxed)) {
    if (is_open_) [[unlikely]]
      begin(name, size_bytes);
  }
  ~WorkRange() {
    if (is_open_) [[unlikely]]
      end();
  }
  WorkRange(const WorkRange&) = delete;
  WorkRange& operator=(const WorkRange&) = delete;

  // Shows ranges from now on: loads the profiler's library, if there is one. Returns false if the
  // library was built without NVTX's headers.
  static bool switch_on() noexcept;

 private:
  static void begin(const char* name, std::size_t size_bytes) noexcept;
  static void end() noexcept;

  static inline std::atomic<bool> is_on_ = false;
  const bool is_open_;
};

}  // namespace uvm
