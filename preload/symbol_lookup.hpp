// Replaces the functions that the look-ups by name of CUDA and HIP return. Thread-safe; throws
// nothing.
#pragma once

namespace uvm::preload {

// Call after such a look-up. If `result` is 0 (success) and uvmalloc intercepts `*found`, replaces
// `*found` by uvmalloc's function. A `caller` in a library of CUDA or HIP keeps the real function.
void put_ours_for(const void* caller, int result, void** found) noexcept;

// Like put_ours_for(), for every caller.
void put_ours(int result, void** found) noexcept;

}  // namespace uvm::preload
