// The functions that a program gets from CUDA's and HIP's look-ups by name. Thread-safe; throws
// nothing.
#pragma once

namespace uvm::preload {

// Call it after such a look-up. If `result` is 0 (success) and we intercept `*found`, replaces
// `*found` by our function. If `caller` is a library of CUDA or HIP, it keeps the real function.
void put_ours_for(const void* caller, int result, void** found) noexcept;

// The same for every caller.
void put_ours(int result, void** found) noexcept;

}  // namespace uvm::preload
