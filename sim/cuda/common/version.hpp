// The CUDA versions that the stand-ins report.
#pragma once

namespace uvmsim::cuda {

inline constexpr int kRuntimeVersion = 13000;

// Returns the value of UVMSIM_DRIVER_VERSION if it is in driver_versions.def, else the newest
// version. Prints a line on stderr for a value that is not accepted.
int driver_version();

// Returns the folder of that driver below the folder of the stand-ins, such as "/12.2"; "" for the
// newest version.
const char* driver_subfolder();

}  // namespace uvmsim::cuda
