// Attributes and properties of the simulated device. Figures that are not modelled are the figures
// of an MI300X.
#pragma once

#include <hip/hip_runtime_api.h>

#include <optional>

namespace uvmsim::hip {

// All devices have the machine's name.
const char* device_name();

// Returns nullopt for a number that HIP does not define.
std::optional<int> device_attribute(hipDeviceAttribute_t attribute, int ordinal);

// Writes 16 bytes that identify the device, whatever HIP_VISIBLE_DEVICES is.
void device_uuid(int ordinal, char* out_bytes);
int pci_bus(int ordinal);

// Write the layout since HIP 6.0 (1,472 bytes), and the older layout (792 bytes).
void write_properties(int ordinal, hipDeviceProp_tR0600* out);
void write_old_properties(int ordinal, void* out);

}  // namespace uvmsim::hip
