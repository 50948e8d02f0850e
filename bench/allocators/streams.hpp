// Streams of device 0 for the workloads. Number 0 is the default stream; the others are
// non-blocking and created on demand. Streams are never destroyed, so they outlive every allocator
// of the process. Not thread-safe: call it before threads start.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <stdexcept>
#include <vector>

namespace uvm::bench {

class Streams {
 public:
  // Returns the first `count` streams, valid until the next call.
  static const std::vector<cudaStream_t>& first(std::size_t count) {
    static std::vector<cudaStream_t> streams{nullptr};
    while (streams.size() < count) {
      cudaStream_t made = nullptr;
      if (cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking) != cudaSuccess) {
        throw std::runtime_error("no stream");
      }
      streams.push_back(made);
    }
    return streams;
  }
};

}  // namespace uvm::bench
