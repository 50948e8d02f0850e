// Names and texts of CUDA's error values.
#pragma once

namespace uvmsim::cuda {

// Return null for a number that is not an error of that interface.
const char* driver_error_name(int error);
const char* driver_error_text(int error);
const char* runtime_error_name(int error);
const char* runtime_error_text(int error);

}  // namespace uvmsim::cuda
