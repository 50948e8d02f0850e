// The CUDA versions that the stand-ins report.
#pragma once

namespace uvmsim::cuda {

inline constexpr int kRuntimeVersion = 13000;

// UVMSIM_DRIVER_VERSION (12020, 12080 or 13000), by default 13000. Another value prints one line on
// stderr.
int driver_version();

// The subfolder of the stand-ins with the driver of that version: "/12.2", or "" for the newest.
const char* driver_subfolder();

}  // namespace uvmsim::cuda
