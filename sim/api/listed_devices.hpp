// Reads variables such as CUDA_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES.
#pragma once

#include <string_view>
#include <vector>

namespace uvmsim::api {

// Returns the listed devices: numbers separated by commas, up to the first entry that is not a
// device or is repeated.
std::vector<int> parse_visible_devices(std::string_view list, int device_count);

// Parses the value of a variable. For null (the variable is not set), returns all devices.
std::vector<int> listed_devices(const char* list, int device_count);

}  // namespace uvmsim::api
