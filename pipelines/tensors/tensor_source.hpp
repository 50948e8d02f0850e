// Supplies the data of a streamed tensor: a file, or a remote source (Glow, Tensor Streaming: a
// kind of device that cannot execute).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>

namespace uvm {

// Reading failed; another attempt may succeed.
struct SourceError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
// The source has changed, and no attempt will succeed.
struct SourceChangedError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class TensorSource {
 public:
  virtual ~TensorSource() = default;
  virtual const std::string& name() const = 0;
  virtual std::uint64_t size_bytes() const = 0;
  // Reads from `offset` into `buffer`. Returns the number of bytes read, at least 1 and at most the
  // buffer's size. Throws SourceError and SourceChangedError. May be called from several threads.
  virtual std::size_t read(std::uint64_t offset, std::span<char> buffer) const = 0;
};

}  // namespace uvm
