// The packer's problem: buffers share one piece of memory (dynamic storage allocation). Each is
// live from `lower` until before `upper`, and needs `size_bytes` at one offset for that time.
// Buffers that are live at the same time must not overlap.
//
// For the searches, time is cut into sections in which the same buffers are live. A section is left
// out if all of its buffers are in another section, since it adds no constraint. Immutable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace uvm {

struct PackBuffer {
  std::int64_t lower = 0;
  std::int64_t upper = 0;
  std::int64_t size_bytes = 0;
};

struct Packing {
  std::vector<std::int64_t> offsets;
  std::int64_t height_bytes = 0;
};

class PackProblem {
 public:
  // A larger sum of sizes is an error. This limit is half of the largest offset.
  static constexpr std::int64_t kMostBytes = std::int64_t{1} << 62;

  // Throws std::invalid_argument, which names the buffer's number, if a buffer is never live or has
  // a negative size, or if the sum of sizes exceeds kMostBytes.
  explicit PackProblem(std::vector<PackBuffer> buffers);

  std::size_t size() const { return buffers_.size(); }
  const PackBuffer& buffer(std::size_t number) const { return buffers_[number]; }
  // Returns the live-range bound: the most bytes that are live at one time. No packing is lower.
  std::int64_t lower_bound_bytes() const { return lower_bound_bytes_; }

  std::size_t section_count() const { return live_.size(); }
  // The sections of a buffer are [first_section(), end_section()).
  std::size_t first_section(std::size_t number) const { return first_[number]; }
  std::size_t end_section(std::size_t number) const { return end_[number]; }
  // Return the buffers of a section, and the buffers that are live at the same time as a buffer.
  std::span<const std::uint32_t> live(std::size_t section) const { return live_[section]; }
  std::span<const std::uint32_t> neighbors(std::size_t number) const { return neighbors_[number]; }

  std::int64_t height_of(std::span<const std::int64_t> offsets) const;
  // Returns an empty string if no buffers overlap in time and memory and no offset is below 0, else
  // a sentence that names the buffers.
  std::string fault_of(std::span<const std::int64_t> offsets) const;

 private:
  std::vector<PackBuffer> buffers_;
  std::vector<std::size_t> first_, end_;
  std::vector<std::vector<std::uint32_t>> live_, neighbors_;
  std::int64_t lower_bound_bytes_ = 0;
};

}  // namespace uvm
