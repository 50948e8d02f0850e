// A tensor with its data in a source, such as a file (Glow, Tensor Streaming). The data is loaded
// and dropped in windows; each window is a ResidentTensor. Not thread-safe.
//
// A failed read is retried. After kAttempts failures in a row the window stays unloaded; loaded
// windows stay loaded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "pipelines/tensors/resident_tensor.hpp"
#include "pipelines/tensors/tensor_source.hpp"

namespace uvm {

// A window cannot be loaded. The message names the tensor, the window, the bytes and the reason.
struct StreamError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class StreamedTensor {
 public:
  static constexpr int kAttempts = 3;

  // The tensor is `size_bytes` bytes of the source from `offset` on. The source must outlive the
  // tensor. Throws std::invalid_argument if the source is shorter, or `window_bytes` is 0.
  StreamedTensor(std::string name, const TensorSource& source, std::uint64_t offset,
                 std::uint64_t size_bytes, std::size_t window_bytes);

  std::size_t window_count() const;
  // Reads the window unless it is loaded. Throws StreamError, or std::out_of_range beyond the last
  // window.
  ResidentTensor& load(std::size_t window);
  // Returns a loaded window. If it is not loaded, throws NotResidentError, which names the window.
  ResidentTensor& at(std::size_t window);
  bool is_loaded(std::size_t window) const { return windows_.contains(window); }
  // Frees the window's host and device memory without a transfer. Does nothing if it is not loaded.
  void drop(std::size_t window) { windows_.erase(window); }

  std::size_t loaded_windows() const { return windows_.size(); }
  std::uint64_t bytes_read() const { return bytes_read_; }

 private:
  std::size_t bytes_of(std::size_t window) const;
  void read(std::size_t window, char* to);

  std::string name_;
  const TensorSource& source_;
  std::uint64_t offset_;
  std::uint64_t size_bytes_;
  std::size_t window_bytes_;
  std::map<std::size_t, std::unique_ptr<ResidentTensor>> windows_;
  std::uint64_t bytes_read_ = 0;
};

}  // namespace uvm
