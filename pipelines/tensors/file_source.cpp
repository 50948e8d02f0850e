#include "pipelines/tensors/file_source.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include <fmt/format.h>

namespace uvm {

FileSource::FileSource(std::string path) : path_(std::move(path)) {
  // Without O_NONBLOCK, opening a pipe would wait for a writer.
  descriptor_ = open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor_ < 0) throw SourceError(fmt::format("{}: {}", path_, std::strerror(errno)));
  struct stat status {};
  if (fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) {
    close(descriptor_);
    throw SourceError(fmt::format("{} is not a regular file", path_));
  }
  size_bytes_ = static_cast<std::uint64_t>(status.st_size);
}

FileSource::~FileSource() {
  close(descriptor_);
}

std::size_t FileSource::read(std::uint64_t offset, std::span<char> buffer) const {
  while (true) {
    const ssize_t count =
        pread(descriptor_, buffer.data(), buffer.size(), static_cast<off_t>(offset));
    if (count > 0) {
      posix_fadvise(descriptor_, static_cast<off_t>(offset), count, POSIX_FADV_DONTNEED);
      return static_cast<std::size_t>(count);
    }
    if (count == 0) {
      throw SourceChangedError(fmt::format("{} ends at byte {} and had {} bytes when it was opened",
                                           path_, offset, size_bytes_));
    }
    if (errno != EINTR) {
      throw SourceError(fmt::format("{}: byte {}: {}", path_, offset, std::strerror(errno)));
    }
  }
}

}  // namespace uvm
