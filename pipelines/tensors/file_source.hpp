// A source that reads a file with pread. Drops pages from the page cache after reading them, so
// that a large file does not fill memory.
#pragma once

#include <string>

#include "pipelines/tensors/tensor_source.hpp"

namespace uvm {

class FileSource final : public TensorSource {
 public:
  // Throws SourceError if the file cannot be opened or is not a regular file.
  explicit FileSource(std::string path);
  ~FileSource() override;
  FileSource(const FileSource&) = delete;
  FileSource& operator=(const FileSource&) = delete;

  const std::string& name() const override { return path_; }
  std::uint64_t size_bytes() const override { return size_bytes_; }
  // Throws SourceChangedError if the file has become shorter since it was opened.
  std::size_t read(std::uint64_t offset, std::span<char> buffer) const override;

 private:
  std::string path_;
  int descriptor_ = -1;
  std::uint64_t size_bytes_ = 0;
};

}  // namespace uvm
