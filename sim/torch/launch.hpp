// One operator's launch on the simulated device: which device and stream it runs on, and what it
// touches. Collects the ranges an operator reads and writes and reports them to the simulator.
// Lives on the stack of one call.
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
  // Makes `device` current for the launch's lifetime and takes its current stream. Throws where a
  // capture does not allow work on it.
  Launch(c10::Device device, std::string operator_name);

  // The strided extent of the tensor, at the program's address. `access` is a mask of UVMSIM_READ
  // and UVMSIM_WRITE.
  void touch(const at::Tensor& tensor, int access);

  // What the operator computes. Without it, bytes alone take time.
  void compute(const Arithmetic& arithmetic) { arithmetic_ = arithmetic; }

  // Tells the simulator what was touched since the last submit; nothing touched, nothing told. To
  // be called before the bytes are written. Throws what a real device would answer:
  // AcceleratorError for memory out of reach, OutOfMemoryError where the pages find no room.
  void submit();

  // Whether the stream is being captured. The operator then runs on memory of its own, for the
  // shapes of its results (see CpuAliases::Use), and `submit` only keeps what was touched for
  // `record`.
  bool is_capturing() const { return is_capturing_; }

  // Makes `work` a kernel of the graph, with all that was touched. It is called at each launch, by
  // the launching thread; what it throws is told on stderr and fails the launch.
  void record(std::function<void()> work);

  // Where this launch finds the bytes at `address`. Throws AcceleratorError where it cannot reach
  // them.
  void* view(const void* address) const;

  // Blocks the caller until the stream has finished, as operators do whose results the host waits
  // for.
  void synchronize() const;

  // The launch touches memory that its device cannot reach.
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
