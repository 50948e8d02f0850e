// Copies bytes to a device and back: the hardware layer of tensors on devices (Glow, "Device
// Resident and Specific Tensors", Transferring To and From the Device). Stores only configuration;
// every method is const and callable from any thread. A copy is complete when its call returns.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string_view>

namespace uvm {

// A device refused a copy. The message names the device and the reason.
struct TransferError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The format of host memory that a device reads and writes without a staging copy.
struct HostFormat {
  std::size_t alignment_bytes = 1;  // a power of two
  std::size_t padding_bytes = 0;    // bytes after the tensor, which the device may read
  friend bool operator==(const HostFormat&, const HostFormat&) = default;
};

class DeviceTransfers {
 public:
  virtual ~DeviceTransfers() = default;
  virtual std::string_view name() const = 0;  // the runtime's name

  // allocate() returns memory of the device. Throws std::bad_alloc.
  virtual void* allocate(int device, std::size_t size_bytes) const = 0;
  virtual void free(int device, void* address) const noexcept = 0;

  // Throws TransferError if the device refuses.
  virtual void to_device(int device, void* destination, const void* host,
                         std::size_t size_bytes) const = 0;
  virtual void to_host(int device, void* host, const void* source,
                       std::size_t size_bytes) const = 0;

  // Returns whether between() can be called for these two devices.
  virtual bool has_peer_access(int source_device, int device) const = 0;
  virtual void between(int source_device, const void* source, int device, void* destination,
                       std::size_t size_bytes) const = 0;

  // For host memory in the device's format (Glow, Pinned Tensors). Throws std::bad_alloc.
  virtual HostFormat host_format(int device) const = 0;
  virtual void* allocate_pinned(int device, std::size_t size_bytes) const = 0;
  virtual void free_pinned(int device, void* address) const noexcept = 0;
};

}  // namespace uvm
