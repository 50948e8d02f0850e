// The CUDA versions that the stand-ins answer with.
#pragma once

namespace uvmsim::cuda {

inline constexpr int kRuntimeVersion = 13000;

// 13000, or what UVMSIM_DRIVER_VERSION says: 12020, 12080 or 13000. Anything else costs one line on
// stderr.
int driver_version();

// Where the driver of that version lies, below the folder of the stand-ins: "/12.2", or "" for the
// newest one.
const char* driver_subfolder();

}  // namespace uvmsim::cuda
