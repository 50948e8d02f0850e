// Names the pools of a facade, device and stream, or of a private pool on them.
#pragma once

#include <compare>
#include <cstdint>

#include <uvmalloc/device_runtime.hpp>
#include <uvmalloc/facade.hpp>

namespace uvm {

struct StreamKey {
  Facade facade = Facade::kHost;
  int device = 0;
  StreamHandle stream = nullptr;   // device facade only
  std::uint64_t private_pool = 0;  // id of a private pool, device facade only; 0: none
  std::uint64_t thread = 0;        // whose per-thread stream it is (DeviceStream)
  DeviceStream device_stream() const { return {device, stream, thread}; }
  // `private_pool` of pools whose stream is gone.
  static constexpr std::uint64_t kForgotten = ~std::uint64_t{0};
  // Both are written out: nvcc does not make the second one from the first.
  friend auto operator<=>(const StreamKey&, const StreamKey&) = default;
  friend bool operator==(const StreamKey&, const StreamKey&) = default;
};

}  // namespace uvm
