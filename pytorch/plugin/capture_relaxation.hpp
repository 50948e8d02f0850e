// The strictest mode of a capture lets every thread's call that may be unsafe to it fail and take
// the capture along: asking the driver for memory is one. Allocation is safe, as it is in torch's
// own allocators; while any capture is open, this says so to the driver for the caller's thread.
#pragma once

#include <atomic>
#include <optional>

#include <c10/cuda/CUDAGraphsC10Utils.h>

namespace uvm::torch_plugin {

// Captures that are open in this process, kept by DevicePools.
inline std::atomic<int> open_captures{0};

class CaptureRelaxation {
 public:
  CaptureRelaxation() {
    if (open_captures.load(std::memory_order_relaxed) != 0) [[unlikely]]
      guard_.emplace(cudaStreamCaptureModeRelaxed);
  }

 private:
  std::optional<c10::cuda::CUDAStreamCaptureModeGuard> guard_;
};

}  // namespace uvm::torch_plugin
