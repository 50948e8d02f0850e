// The HIP version that this library reports. The version is in the library's SONAME, so a program
// loads the version that it was linked with.
#pragma once

namespace uvmsim::hip {

// The version in the form of HIP_VERSION: 10,000,000 * major + 100,000 * minor + patch.
extern const int kVersion;

// The first version with the R0600 layout of properties, and with CUDA's numbers of memory types.
inline constexpr int kNewNumbers = 60'000'000;
// The first version that refuses managed memory and advice during a capture independently of the
// thread's mode.
inline constexpr int kStrictCaptures = 70'000'000;

}  // namespace uvmsim::hip
