// Attributes of the simulated device. CUdevice_attribute and cudaDeviceAttr have the same numbers.
#pragma once

#include <optional>

namespace uvmsim::cuda {

// All devices have the machine's name.
const char* device_name();

// Returns nullopt for a number that CUDA 13.0 does not define.
std::optional<int> device_attribute(int attribute, int ordinal);

// Writes 16 bytes that identify the device, whatever CUDA_VISIBLE_DEVICES is.
void device_uuid(int ordinal, char* out_bytes);

// Return the UUID and the PCI bus of the device with that physical number.
void device_uuid_of_number(int number, char* out_bytes);
int pci_bus_of_number(int number);

}  // namespace uvmsim::cuda
