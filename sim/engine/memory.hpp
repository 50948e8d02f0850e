// The machine's memory: its size, allocations of every kind, and which devices may use them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "sim/engine/allocation.hpp"
#include "sim/engine/export.hpp"
#include "sim/engine/machine_calls.hpp"
#include "sim/engine/status.hpp"

namespace uvmsim {

class SharedState;

class UVMSIM_EXPORT Memory {
 public:
  explicit Memory(SharedState& shared) : shared_(shared) {}

  // Returns false if the process has too little address space or too few descriptors; then all
  // allocations fail.
  bool has_address_space();
  MemoryUse use(int device);
  HostUse host_use();
  void reset_peak_use(int device);
  Status set_capacity(int device, std::size_t bytes);

  Status allocate_managed(int device, std::size_t bytes, unsigned flags, void** out);
  Status allocate_device(int device, std::size_t bytes, void** out);
  // Allocates device memory for `rows` rows of `width_bytes`. Each row starts at an aligned
  // address.
  Status allocate_rows(int device, std::size_t width_bytes, std::size_t rows,
                       std::size_t* out_pitch_bytes, void** out);
  Status allocate_pinned(int device, std::size_t bytes, unsigned flags, void** out);
  // Free memory by its start address. Like the modelled calls, first wait for the work of the
  // device, in virtual time; free() only for Wait::kYes.
  Status free(void* address, Wait wait);
  Status free_pinned(void* address);
  Status register_host(int device, void* address, std::size_t bytes, unsigned flags);
  Status unregister_host(void* address);

  // Returns the allocation that holds the address, if any.
  std::optional<Allocation> find(const void* address);
  void* device_view(const void* address);

  bool peer_access(int device, int peer);
  Status enable_peer_access(int device, int peer);
  Status disable_peer_access(int device, int peer);

 private:
  SharedState& shared_;
};

}  // namespace uvmsim
