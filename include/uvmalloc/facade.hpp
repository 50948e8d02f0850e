// The three memory kinds of the allocator. Each is named after the memory that it replaces.
#pragma once

#include <cstddef>
#include <cstdint>

namespace uvm {

enum class Facade : std::uint8_t {
  kHost,    // pageable host memory
  kPinned,  // page-locked host memory: staging for copies, written by the host, read by devices
  kDevice,
};
inline constexpr std::size_t kFacades = 3;

constexpr const char* to_string(Facade facade) {
  switch (facade) {
    case Facade::kHost:
      return "host";
    case Facade::kPinned:
      return "pinned";
    case Facade::kDevice:
      return "device";
  }
  return "unknown";
}

}  // namespace uvm
