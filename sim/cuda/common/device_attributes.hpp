// Attributes of the simulated device. CUdevice_attribute and cudaDeviceAttr have the same numbers.
#pragma once

#include <optional>

namespace uvmsim::cuda {

// Of every device: the machine's.
const char* device_name();

// Nothing for a number that CUDA 13.0 does not know.
std::optional<int> device_attribute(int attribute, int ordinal);

// Fills 16 bytes that tell the devices apart, also across CUDA_VISIBLE_DEVICES.
void device_uuid(int ordinal, char* out_bytes);

// The same, and the PCI bus, by the device's number before CUDA_VISIBLE_DEVICES.
void device_uuid_of_number(int number, char* out_bytes);
int pci_bus_of_number(int number);

}  // namespace uvmsim::cuda
