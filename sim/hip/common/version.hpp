// The version of HIP that this library answers with. Each library is of one version, which its
// SONAME tells: a program finds the one that it was linked with.
#pragma once

namespace uvmsim::hip {

// As HIP_VERSION: 10,000,000 * major + 100,000 * minor + patch.
extern const int kVersion;

// The first version with the R0600 layout of properties, and with the memory types that CUDA has.
inline constexpr int kNewNumbers = 60'000'000;
// The first version that refuses managed memory and advice beside a capture, whatever the thread's
// mode.
inline constexpr int kStrictCaptures = 70'000'000;

}  // namespace uvmsim::hip
