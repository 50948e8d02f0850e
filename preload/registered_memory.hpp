// Host memory of ours that programs registered with CUDA. The driver refuses to register managed
// memory, and devices can access it anyway. So we record the range, and answer later queries as for
// registered memory. Thread-safe.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <optional>

namespace uvm::preload {

class RegisteredMemory {
 public:
  // The one object of the process, made at the first use: constructors of other libraries may call
  // it before ours have run.
  static RegisteredMemory& instance();

  // The cudaError_t for the call: 0, or why the range cannot be registered. nullopt: not managed
  // host memory of ours; forward the call.
  std::optional<int> add(const void* address, std::size_t size_bytes);
  // `address` is the start of a range. False: no registered range starts there.
  bool remove(const void* address);
  bool contains(const void* address);
  // Removes the ranges whose blocks have ended.
  void forget_ended_blocks();

 private:
  using Ranges = std::map<const char*, std::size_t>;  // size in bytes by start

  bool holds(Ranges::const_iterator after, const char* address) const;

  std::mutex mutex_;
  Ranges ranges_;
};

}  // namespace uvm::preload
