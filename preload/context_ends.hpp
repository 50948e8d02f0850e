// Handles the ends of contexts: uvmalloc's memory, streams and events in the context are gone.
// Independent of the vendor. As thread-safe as the calls that end contexts.
#pragma once

#include "preload/interpose.hpp"
#include "preload/kernel_arguments.hpp"

namespace uvm::preload {

// Call before a primary context is destroyed. Finishes uvmalloc's prefetches, so that none of its
// threads uses the context meanwhile.
void prepare_for_reset() noexcept;
// Call after a primary context was destroyed. Ends the blocks in its memory.
void note_device_reset(int device);

// Forwards a call that destroys the primary context of `device` (-1: no such device). The call also
// returns errors of earlier work, so a call that fails may have destroyed the context too. In that
// case is_gone() decides.
template <class Reset, class IsGone>
auto pass_reset_on(const char* call, int device, Reset reset, IsGone is_gone) noexcept {
  forget_layouts(call);
  prepare_for_reset();
  const auto result = reset();
  if (device >= 0 && (result == decltype(result){} || is_gone()))
    beside(call, [&] { note_device_reset(device); });
  return result;
}

}  // namespace uvm::preload
