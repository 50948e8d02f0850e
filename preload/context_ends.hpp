// The ends of contexts: memory, streams and events of ours that were in one are gone. Knows no
// vendor. Thread-safe, as far as the calls that end contexts are.
#pragma once

#include "preload/interpose.hpp"
#include "preload/kernel_arguments.hpp"

namespace uvm::preload {

// The device's primary context is about to be destroyed: nothing of ours calls it meanwhile.
void prepare_for_reset() noexcept;
// It was destroyed: blocks in its memory have ended.
void note_device_reset(int device);

// Passes on a call that destroys the primary context of `device`; -1: there is no such device. A
// call that fails may have destroyed it too, because it also returns errors of earlier work:
// is_gone() tells.
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
