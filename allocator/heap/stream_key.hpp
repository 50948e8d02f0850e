// Identifies the pools of a memory kind, device and stream, or of a private pool on that stream.
#pragma once

#include <compare>
#include <cstdint>

#include <uvmalloc/device_runtime.hpp>
#include <uvmalloc/facade.hpp>

namespace uvm {

struct StreamKey {
  Facade facade = Facade::kHost;
  int device = 0;
  StreamHandle stream = nullptr;   // device memory only
  std::uint64_t private_pool = 0;  // id of a private pool; 0: none
  std::uint64_t thread = 0;        // owner of a per-thread stream (DeviceStream)
  DeviceStream device_stream() const { return {device, stream, thread}; }
  // Values of `private_pool` that no program uses: for pools without a stream (PoolTable::forget),
  // and for memory at addresses that its owner chose (ReservedAddresses).
  static constexpr std::uint64_t kForgotten = ~std::uint64_t{0};
  static constexpr std::uint64_t kReserved = kForgotten - 1;
  // Pools of ordinary memory (host_backing.hpp), for device and host memory, by a number that their
  // owner chooses. They have no users, so their free memory goes back like that of a stream.
  static constexpr std::uint64_t ordinary_pool(std::uint32_t number) {
    return kReserved - 1 - number;
  }
  bool is_ordinary() const {
    return private_pool < kReserved && private_pool >= ordinary_pool(UINT32_MAX);
  }
  // The private pool of the program; 0: none.
  std::uint64_t program_pool() const { return is_ordinary() ? 0 : private_pool; }
  // Both are declared, because nvcc does not derive the second one from the first.
  friend auto operator<=>(const StreamKey&, const StreamKey&) = default;
  friend bool operator==(const StreamKey&, const StreamKey&) = default;
};

}  // namespace uvm
