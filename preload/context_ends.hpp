// Handles the end of a context, which destroys uvmalloc's memory, streams and events in it.
// Independent of the vendor. Callers synchronise these functions like the calls that end contexts.
#pragma once

#include "preload/interpose.hpp"
#include "preload/kernel_arguments.hpp"

namespace uvm::preload {

// Call before a primary context is destroyed. Finishes uvmalloc's prefetches, so that no thread of
// uvmalloc uses the context during the reset.
void prepare_for_reset() noexcept;
// Call after a primary context was destroyed. Removes its blocks from uvmalloc's records.
void note_device_reset(int device);

// Forwards a call that destroys the primary context of `device` (-1: no such device). The call also
// returns errors of earlier work, so it may fail although it destroyed the context. After a
// failure, is_gone() returns whether the context was destroyed.
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
