// One operator's launch on the simulated device, with its device and stream. Reports the ranges
// that the operator reads and writes to the simulator. Lives on the stack of one call.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sim/torch/arithmetic.hpp"
#include "sim/torch/simulator.hpp"

namespace uvm::sim_kernels {

class Launch {
 public:
  // Makes `device` current for the launch's lifetime and uses its current stream. Throws if a
  // capture forbids work on that stream.
  Launch(c10::Device device, std::string operator_name);

  // Adds the strided extent of the tensor, at the program's address. `access` is a mask of
  // UVMSIM_READ and UVMSIM_WRITE.
  void touch(const at::Tensor& tensor, int access);

  // Sets the operator's computation. Without it, only bytes take time.
  void compute(const Arithmetic& arithmetic) { arithmetic_ = arithmetic; }

  // Reports the ranges that were added since the last submit(), if there are any. Call this before
  // the bytes are written. Throws like a real device: AcceleratorError for memory that the device
  // cannot access, OutOfMemoryError if the pages do not fit.
  void submit();

  // Returns whether the stream is being captured. If so, the operator runs on memory of its
  // aliases, to get the shapes of its results (see CpuAliases::Use), and submit() only keeps the
  // touched ranges for record().
  bool is_capturing() const { return is_capturing_; }

  // Makes `work` a kernel of the graph, with all touched ranges. The launching thread calls `work`
  // at each launch; an exception is printed on stderr and fails the launch.
  void record(std::function<void()> work);

  // Returns the address at which this launch accesses the bytes of `address`. Throws
  // AcceleratorError if the device cannot access the bytes.
  void* view(const void* address) const;

  // Blocks the caller until the stream has finished, for operators with results that the host
  // reads.
  void synchronize() const;

  // Fails a launch that touches memory which its device cannot access.
  [[noreturn]] void fail_illegal_address(const void* address) const;

  c10::Device device() const { return stream_.device(); }

 private:
  uvmsim_arithmetic arithmetic() const;
  void check(int error) const;

  c10::cuda::CUDAGuard device_guard_;
  c10::cuda::CUDAStream stream_;
  std::string operator_name_;
  std::vector<uvmsim_access> accesses_;
  Arithmetic arithmetic_;
  bool submitted_ = false;
  bool is_capturing_ = false;
};

}  // namespace uvm::sim_kernels
