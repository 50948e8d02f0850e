// Host memory of ours that programs have registered with CUDA. Devices reach it as it is, and the
// driver refuses managed memory; to programs it is then what registered memory is. Thread-safe.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <optional>

namespace uvm::preload {

class RegisteredMemory {
 public:
  // The process's. Made when it is first asked for: other libraries' constructors may do so before
  // ours have run.
  static RegisteredMemory& instance();

  // The range's cudaError_t: 0, or why it cannot be registered. nullopt: it is not managed host
  // memory of ours, and the driver is to say.
  std::optional<int> add(const void* address, std::size_t size_bytes);
  // By its start. False: none does.
  bool remove(const void* address);
  bool contains(const void* address);
  // Registrations end with the blocks that they are in.
  void forget_ended_blocks();

 private:
  using Ranges = std::map<const char*, std::size_t>;  // bytes by start

  bool holds(Ranges::const_iterator after, const char* address) const;

  std::mutex mutex_;
  Ranges ranges_;
};

}  // namespace uvm::preload
