#include "pipelines/tensors/streamed_tensor.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

namespace uvm {

StreamedTensor::StreamedTensor(std::string name, const TensorSource& source, std::uint64_t offset,
                               std::uint64_t size_bytes, std::size_t window_bytes)
    : name_(std::move(name)),
      source_(source),
      offset_(offset),
      size_bytes_(size_bytes),
      window_bytes_(window_bytes) {
  if (window_bytes == 0) {
    throw std::invalid_argument(fmt::format("tensor '{}' has windows of 0 bytes", name_));
  }
  if (size_bytes > source.size_bytes() || offset > source.size_bytes() - size_bytes) {
    throw std::invalid_argument(fmt::format("tensor '{}' ends at byte {}; {} has {} bytes", name_,
                                            offset + size_bytes, source.name(),
                                            source.size_bytes()));
  }
}

std::size_t StreamedTensor::window_count() const {
  return static_cast<std::size_t>((size_bytes_ + window_bytes_ - 1) / window_bytes_);
}

std::size_t StreamedTensor::bytes_of(std::size_t window) const {
  if (window >= window_count()) {
    throw std::out_of_range(
        fmt::format("tensor '{}' has no window {}; it has {}", name_, window, window_count()));
  }
  return static_cast<std::size_t>(
      std::min<std::uint64_t>(window_bytes_, size_bytes_ - std::uint64_t{window} * window_bytes_));
}

ResidentTensor& StreamedTensor::at(std::size_t window) {
  const auto found = windows_.find(window);
  if (found != windows_.end()) return *found->second;
  bytes_of(window);
  throw NotResidentError(
      fmt::format("window {} of tensor '{}' is not loaded from {}; call load() first", window,
                  name_, source_.name()));
}

ResidentTensor& StreamedTensor::load(std::size_t window) {
  if (is_loaded(window)) return at(window);
  const auto size_bytes = static_cast<std::int64_t>(bytes_of(window));
  auto made = std::make_unique<ResidentTensor>(fmt::format("{}[{}]", name_, window),
                                               TensorType{1, {size_bytes}});
  read(window, static_cast<char*>(made->mutable_host_data()));
  return *windows_.emplace(window, std::move(made)).first->second;
}

// A retry continues after the bytes that have been read.
void StreamedTensor::read(std::size_t window, char* to) {
  const std::uint64_t begin = offset_ + std::uint64_t{window} * window_bytes_;
  const std::size_t size_bytes = bytes_of(window);
  const auto fail = [&](std::size_t done, const char* reason) {
    throw StreamError(fmt::format("tensor '{}': window {} cannot be loaded: {} of {} bytes: {}",
                                  name_, window, done, size_bytes, reason));
  };
  int attempts = 0;
  for (std::size_t done = 0; done < size_bytes;) {
    try {
      const std::size_t count = source_.read(begin + done, {to + done, size_bytes - done});
      done += count;
      bytes_read_ += count;
      attempts = 0;
    } catch (const SourceChangedError& changed) {
      fail(done, changed.what());
    } catch (const SourceError& error) {
      if (++attempts == kAttempts) fail(done, error.what());
    }
  }
}

}  // namespace uvm
