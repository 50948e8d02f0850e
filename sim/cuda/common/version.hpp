// The CUDA versions that the stand-ins report.
#pragma once

namespace uvmsim::cuda {

inline constexpr int kRuntimeVersion = 13000;

// The value of UVMSIM_DRIVER_VERSION if driver_versions.def has it, else the newest version. A line
// on stderr names a value that is not accepted.
int driver_version();

// The folder of that driver below the folder of the stand-ins, such as "/12.2"; "" for the newest.
const char* driver_subfolder();

}  // namespace uvmsim::cuda
