// A tensor that tracks where its up-to-date data is: on the host, on a device, or on both (Glow,
// "Device Resident and Specific Tensors"). A use at another place transfers the data, at most once
// (Glow, When to Transfer Tensors: lazily). Results stay on their device until the host reads them.
//
// If the host reads data that is only on a device, HostAccess decides: an error that names the
// tensor, or a transfer.
//
// The tensor owns its host memory, plain or pinned for a device (allocate_pinned()), or uses host
// memory of the caller. The tensor keeps the host memory while the data is on a device; a transfer
// back overwrites that memory. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "pipelines/tensors/device_residency.hpp"
#include "pipelines/tensors/device_transfers.hpp"

namespace uvm {

struct TensorType {
  std::size_t element_bytes = 1;
  std::vector<std::int64_t> shape;

  // Throws std::invalid_argument for a negative dimension, std::overflow_error from 2^63 bytes on.
  std::size_t size_bytes() const;
  friend bool operator==(const TensorType&, const TensorType&) = default;
};

// What host_data() does while the data is on a device.
enum class HostAccess : std::uint8_t { kError, kTransfer };

// The data is not on the host. The message names the tensor and where its data is.
struct NotResidentError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// How often a tensor's data has been copied in each direction.
struct TransferCounts {
  std::uint64_t to_device = 0;
  std::uint64_t to_host = 0;
  std::uint64_t between_devices = 0;
  friend bool operator==(const TransferCounts&, const TransferCounts&) = default;
};

class ResidentTensor {
 public:
  // Allocates zeroed host memory at the first use, unless `host` is given. Memory at `host` belongs
  // to the caller and must outlive the tensor.
  ResidentTensor(std::string name, TensorType type, HostAccess access = HostAccess::kError,
                 void* host = nullptr);
  ~ResidentTensor();
  ResidentTensor(const ResidentTensor&) = delete;
  ResidentTensor& operator=(const ResidentTensor&) = delete;

  const std::string& name() const { return name_; }
  const TensorType& type() const { return type_; }
  std::size_t size_bytes() const { return size_bytes_; }

  // ---- queries
  // Returns whether the up-to-date data is on a device and not on the host.
  bool is_device_resident() const { return is_on_device_ && !is_on_host_; }
  // Returns the device with up-to-date data; `runtime` is nullptr if no device has it.
  DeviceResidencyInfo residency() const { return is_on_device_ ? device_ : DeviceResidencyInfo{}; }
  bool is_pinned_for(const DeviceTransfers& runtime, int device) const;
  const TransferCounts& transfers() const { return transfers_; }

  // ---- access: transfers the data if needed
  const void* host_data();  // may throw NotResidentError, as HostAccess decides
  // For host code that writes all or part of the data; a copy on a device becomes stale.
  void* mutable_host_data();
  const void* device_data(const DeviceTransfers& runtime, int device);
  // For a kernel that writes all or part of the data; the host's copy becomes stale.
  void* mutable_device_data(const DeviceTransfers& runtime, int device);
  // For a kernel that writes all of the data; nothing is transferred.
  void* device_output(const DeviceTransfers& runtime, int device);

  // ---- transfers, as in the Glow document Copies up-to-date data to the device: from the host,
  // from a peer, or through the host if the devices are not peers. Does nothing if the device
  // already has the data. If `location` is given, the tensor uses this device memory, which still
  // belongs to the caller. After std::bad_alloc or TransferError the data is where it was.
  void transfer_to_device(const DeviceTransfers& runtime, int device, void* location = nullptr);
  // Copies the data to the host if the data is only on a device. `release` also frees the device's
  // memory. Returns false, and does nothing, if no device has the data.
  bool transfer_from_device(bool release = true);
  // Frees the device's memory without copying. Data that was only on the device is lost; the host
  // still has its older copy.
  void release();
  // Replaces the host memory by memory in the device's format, and copies the host's data to it.
  void allocate_pinned(const DeviceTransfers& runtime, int device);

 private:
  void* host_memory();
  void ensure_device_memory(const DeviceTransfers& runtime, int device, void* location);
  void free_device_memory() noexcept;
  void free_host_memory() noexcept;

  std::string name_;
  TensorType type_;
  HostAccess access_;
  std::size_t size_bytes_;
  void* host_ = nullptr;
  bool owns_host_ = false;
  DeviceResidencyInfo pinned_;  // the device that host_ is pinned for
  DeviceResidencyInfo device_;  // the memory on the device, up to date or not
  bool owns_device_ = false;
  bool is_on_host_ = true;
  bool is_on_device_ = false;
  TransferCounts transfers_;
};

}  // namespace uvm
