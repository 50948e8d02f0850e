// A place for bytes: host memory or a device. Code outside hints/ and runtime/ only compares
// places, and must not assume that there is no third kind.
#pragma once

#include <compare>
#include <cstdint>
#include <string>

namespace uvm {

enum class PlaceKind : std::uint8_t { kNowhere, kHost, kDevice };

struct Place {
  PlaceKind kind = PlaceKind::kNowhere;
  std::int8_t index = 0;  // device ordinal; 0 for every other kind

  static constexpr Place nowhere() { return {}; }
  static constexpr Place host() { return {PlaceKind::kHost, 0}; }
  static constexpr Place device(int ordinal) {
    return {PlaceKind::kDevice, static_cast<std::int8_t>(ordinal)};
  }

  constexpr bool is_host() const { return kind == PlaceKind::kHost; }
  constexpr bool is_device() const { return kind == PlaceKind::kDevice; }
  // Both are declared, because nvcc does not derive == from <=>.
  friend constexpr auto operator<=>(const Place&, const Place&) = default;
  friend constexpr bool operator==(const Place&, const Place&) = default;
};

// Returns "host", "device:0", or "nowhere".
std::string to_string(Place place);

}  // namespace uvm
