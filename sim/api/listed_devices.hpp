// The devices that a variable such as CUDA_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES leaves.
#pragma once

#include <string_view>
#include <vector>

namespace uvmsim::api {

// As the modelled libraries read the list: numbers separated by commas, up to the first entry that
// is no device or comes twice.
std::vector<int> parse_visible_devices(std::string_view list, int device_count);

// The same for the value of a variable; null, an unset variable, leaves all devices.
std::vector<int> listed_devices(const char* list, int device_count);

}  // namespace uvmsim::api
