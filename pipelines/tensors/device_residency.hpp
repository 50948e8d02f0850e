// Identifies the device with the up-to-date data of a tensor, if any (Glow, Storing Device
// Residency Information).
#pragma once

#include "pipelines/tensors/device_transfers.hpp"

namespace uvm {

struct DeviceResidencyInfo {
  const DeviceTransfers* runtime = nullptr;  // nullptr: the data is on no device
  int device = -1;
  void* context = nullptr;  // the address on the device

  bool is_on(const DeviceTransfers& other, int other_device) const {
    return runtime == &other && device == other_device;
  }
  friend bool operator==(const DeviceResidencyInfo&, const DeviceResidencyInfo&) = default;
};

}  // namespace uvm
