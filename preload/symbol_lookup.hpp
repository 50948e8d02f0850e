// What the look-ups by name of CUDA and HIP give a program. Thread-safe; throws nothing.
#pragma once

namespace uvm::preload {

// After such a look-up by `caller` with `result`, where 0 is success: puts our function in the
// place of `*found` if ours stands before it. The interfaces' own libraries keep theirs.
void put_ours_for(const void* caller, int result, void** found) noexcept;

}  // namespace uvm::preload
