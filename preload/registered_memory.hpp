// Records host memory of uvmalloc that programs registered with CUDA. The driver refuses to
// register managed memory, but devices can access it anyway. So add() only records the range, and
// later queries get the same results as for registered memory. Thread-safe.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <optional>

namespace uvm::preload {

class RegisteredMemory {
 public:
  // The one object of the process, made at the first use, because constructors of other libraries
  // may call instance() before this library's constructors have run.
  static RegisteredMemory& instance();

  // Returns the cudaError_t for the call: 0, or why the range cannot be registered. Returns nullopt
  // if the memory is not managed host memory of uvmalloc; then the caller forwards the call.
  std::optional<int> add(const void* address, std::size_t size_bytes);
  // Removes the range that starts at `address`. Returns false if no registered range starts there.
  bool remove(const void* address);
  bool contains(const void* address);
  void forget_ended_blocks();

 private:
  using Ranges = std::map<const char*, std::size_t>;  // size in bytes by start

  bool holds(Ranges::const_iterator after, const char* address) const;

  std::mutex mutex_;
  Ranges ranges_;
};

}  // namespace uvm::preload
