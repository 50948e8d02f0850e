// Attributes and properties of the simulated device. Its numbers are those of an MI300X where
// nothing else is modelled.
#pragma once

#include <hip/hip_runtime_api.h>

#include <optional>

namespace uvmsim::hip {

// Of every device: the machine's.
const char* device_name();

// Nothing for a number that HIP does not know.
std::optional<int> device_attribute(hipDeviceAttribute_t attribute, int ordinal);

// Fills 16 bytes that tell the devices apart, also across HIP_VISIBLE_DEVICES.
void device_uuid(int ordinal, char* out_bytes);
int pci_bus(int ordinal);

// The layout since HIP 6.0, of 1,472 bytes, and the one before, of 792 bytes.
void write_properties(int ordinal, hipDeviceProp_tR0600* out);
void write_old_properties(int ordinal, void* out);

}  // namespace uvmsim::hip
