// A set of places: the host, and devices.
#pragma once

#include <bit>
#include <cstdint>

#include <uvmalloc/place.hpp>

namespace uvm {

class PlaceSet {
 public:
  static constexpr int kMostDevices = 63;

  constexpr PlaceSet() = default;
  constexpr explicit PlaceSet(Place place) { add(place); }

  constexpr void add(Place place) { bits_ |= bit(place); }
  constexpr void remove(Place place) { bits_ &= ~bit(place); }
  constexpr void keep(PlaceSet others) { bits_ &= others.bits_; }
  constexpr bool has(Place place) const { return (bits_ & bit(place)) != 0; }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr bool has_device() const { return (bits_ >> 1) != 0; }
  friend constexpr bool operator==(PlaceSet, PlaceSet) = default;

  // Returns the first device, or the host if the set has no device.
  constexpr Place first_device() const {
    const std::uint64_t devices = bits_ >> 1;
    return devices == 0 ? Place::host() : Place::device(std::countr_zero(devices));
  }

  template <class Visit>
  void each_device(Visit visit) const {
    for (int device = 0; device < kMostDevices; ++device) {
      if (has(Place::device(device))) visit(device);
    }
  }

 private:
  // Devices from kMostDevices on share the last bit.
  static constexpr std::uint64_t bit(Place place) {
    if (place.is_host()) return 1;
    if (!place.is_device()) return 0;
    return std::uint64_t{2} << (place.index < kMostDevices ? place.index : kMostDevices - 1);
  }

  std::uint64_t bits_ = 0;
};

}  // namespace uvm
