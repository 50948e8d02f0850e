// Green contexts, which both interfaces of CUDA destroy: CUDA 12.4's driver and CUDA 13.1's
// runtime.
#pragma once

#include "preload/define_calls.hpp"
#include "preload/kernel_arguments.hpp"

namespace uvm::preload::cuda {

// Call before the green context is destroyed. Forgets its streams, which accept no work afterwards
// and are not destroyed one by one. The context's memory belongs to the primary context, and
// remains.
void note_streams_of_green_gone(const void* context);

auto destroy_green_context(const auto& call, auto context) {
  forget_layouts(call.name());
  beside(call.name(), [&] { note_streams_of_green_gone(context); });
  return call.forward(context);
}

}  // namespace uvm::preload::cuda
