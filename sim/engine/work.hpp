// The work that programs put on streams: kernels, host functions, copies and fills. Work runs at
// once, or is recorded if the stream is being captured. If a capture forbids a call, the status
// names the broken rule.
#pragma once

#include <cstdint>
#include <span>

#include "sim/engine/export.hpp"
#include "sim/engine/machine_calls.hpp"
#include "sim/engine/status.hpp"

namespace uvmsim {

class SharedState;

class UVMSIM_EXPORT Work {
 public:
  explicit Work(SharedState& shared) : shared_(shared) {}

  // Returns kCaptureUnsupported if the stream is being captured: the caller does the kernel's work,
  // so that work cannot be recorded.
  Status kernel(int device, StreamHandle stream, std::span<const uvmsim_access> accesses,
                const KernelWork& work);
  Status launch_kernel(int device, StreamHandle stream, Kernel kernel);
  Status run_host_function(int device, StreamHandle stream, const HostFunction& function);
  Status copy(int device, StreamHandle stream, const Copy& copy, Wait wait);
  Status fill(int device, StreamHandle stream, const Fill& fill, Wait wait);

  // Returns a kernel's time by the cost model.
  std::uint64_t kernel_ns(std::uint64_t bytes, std::uint64_t operations, OperationType type) const;

 private:
  SharedState& shared_;
};

}  // namespace uvmsim
