// The numbers by which the preloaded library serves a program, each with its unit and its reason.
#pragma once

#include <cstddef>

namespace uvm::policy {

// Frees that wait for a device, because the program may still use the block there (DeferredFrees).
// If the blocks of a device reach one of these limits, uvmalloc waits for the device.
inline constexpr std::size_t kMostDeferredBlocks = 64;
inline constexpr std::size_t kMostDeferredBytes = std::size_t{256} << 20;

}  // namespace uvm::policy
